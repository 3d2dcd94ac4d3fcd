"""Signs texts that lie in Redis or travel through it."""
