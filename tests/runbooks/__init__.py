"""The pages of runbooks/ are run: what stands under a command is what it prints."""
