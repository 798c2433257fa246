"""What was measured on this device, kept on disk: the parameters of the cost model, and what
kernels take (`database`); which device and which compiler it holds for (`device`)."""
