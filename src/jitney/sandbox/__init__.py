"""Child processes of ours: how one is started, spoken to and ended, and `Sandbox`, which runs tasks
on texts of strangers in one, under limits. Nothing of what the tasks are."""
