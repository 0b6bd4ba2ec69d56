"""What templates are given: the service's rows turned into sentences, figures and addresses."""
