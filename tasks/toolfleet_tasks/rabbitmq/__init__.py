"""What the fleet does otherwise than kombu where RabbitMQ is the broker."""
