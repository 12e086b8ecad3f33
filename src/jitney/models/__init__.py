"""Model files: reading, fetching, converting, listing and removing them. Nothing that runs one."""
