"""Child processes: how to start one, talk to it and end it. `Sandbox` runs tasks on untrusted text
in a child process with limits. What the tasks are does not belong here."""
