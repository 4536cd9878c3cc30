"""What Prometheus scrapes and Grafana shows, and a look at it without Grafana."""
