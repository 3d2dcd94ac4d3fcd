"""Corrects kombu where RabbitMQ is the broker."""
