"""What uploaded functions run on: unpacked folders and environments in caches that the node's workers share."""
