"""Problems, traces and how the policy is shown them."""
