"""The seeded simulation: the real steps in every order, under every fault, judged by both books."""
