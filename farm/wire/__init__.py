"""The wire: the only definition of what the farm and its nodes say to each other."""
