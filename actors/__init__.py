"""Who does what, in which order: one writer, several readers, a janitor, and the mailboxes between them."""
