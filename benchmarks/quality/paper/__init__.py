"""The claims of the SelSync paper and of its rivals' papers, one by one."""
