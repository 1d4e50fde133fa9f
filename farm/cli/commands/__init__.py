"""The tree of commands, a module for each subject; what a command does is imported when it runs."""
