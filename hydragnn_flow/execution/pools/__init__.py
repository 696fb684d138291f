"""Workers and the batch jobs that hold them: started, watched, given back."""
