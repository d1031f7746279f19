"""The traps' faults, one patch file each, and the job that shows that a test notices every one of them."""
