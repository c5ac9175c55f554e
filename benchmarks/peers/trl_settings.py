"""What all measured trainers of TRL are given: rolloutlab's AdamW and clipping, fp32, and nothing saved."""

SETTINGS = {
    "beta": 0.0,
    "lr_scheduler_type": "constant",
    "adam_beta2": 0.99,
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
    "bf16": False,
    "gradient_checkpointing": False,
    "model_init_kwargs": {"dtype": "float32"},
    "dataloader_pin_memory": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
}
