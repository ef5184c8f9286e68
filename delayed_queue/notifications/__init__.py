"""The notification service: requests in by REST and broker, email, SMS and webhooks out."""
