"""What this machine is and has free: its processor, its memory, its neighbours."""
