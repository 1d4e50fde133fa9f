"""The broker edge: Celery and kombu. A message is a hint: losing, doubling or reordering one is harmless."""
