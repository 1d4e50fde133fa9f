"""GPUs of this machine: what they are, how they are, and what keeps a task on its own."""
