"""/v1/responses of the OpenAI API, without storage: each request has the whole conversation."""
