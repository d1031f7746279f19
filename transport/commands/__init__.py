"""The program's own commands, by what they are about. They import late: `--help` opens nothing."""
