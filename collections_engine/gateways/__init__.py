"""One file per provider dialect: build the request, classify the answer."""
