"""`solos-memory acceptance`: the checks by which a rollout is accepted, performed on a running service."""
