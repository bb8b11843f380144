"""The HTTP service: webhooks, the API, health and metrics (`collections serve`)."""
