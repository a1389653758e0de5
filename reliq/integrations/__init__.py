"""What is known of Celery, its pools and Flower; none of them is required."""
