"""Memory of a policy of half a billion parameters: sampling and one training job on the CPU within 16 GB.

The policy has the shape of Qwen2.5-0.5B (arXiv 2412.15115), random weights in bf16 and a vocabulary made on the spot;
nothing is downloaded. The address space of this process and of its service is limited to 16 GiB, so that a larger need
fails instead of taking the machine's memory. Some minutes on two cores; `--no-checkpointing` keeps all activations.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from goals import Goal, conclude
from measure import ROOT, forget_peak, peak_memory

from rolloutlab.session import Session
from rolloutlab.settings import ModelSettings, Settings

sys.path.insert(0, str(ROOT))
from tests.policies import byte_tokenizer, save_policy

GIB = 1 << 30
LIMIT = 16 * GIB
VOCABULARY = 151_936
SIZES = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_policy(folder: Path) -> int:
    """Write the policy; its number of parameters."""
    tokenizer = byte_tokenizer([], VOCABULARY, ["<|im_start|>", "<|im_end|>"])
    names = {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    sizes = SIZES | {"max_position_embeddings": 32_768, "tie_word_embeddings": True, "dtype": torch.bfloat16}
    model = save_policy(folder, tokenizer, TEMPLATE, names, "qwen2", **sizes)
    return sum(parameter.numel() for parameter in model.parameters())


def measure(lab: Session) -> list[Goal]:
    pid = lab.embedded.pid()
    forget_peak(pid)
    begun = time.monotonic()
    rows = [{"letters": text} for text in ("d b a c", "s h i f")]
    lab.chat("letters", "Sort these letters: {{letters}}", n=4, over=rows, seed=1, max_tokens=32)
    sampled = peak_memory(pid)
    print(f"8 completions in {time.monotonic() - begun:.0f} s, peak {sampled / GIB:.1f} GiB", flush=True)
    forget_peak(pid)
    begun = time.monotonic()
    lab.reward("letters", lambda _trajectory, answer, _messages, _row: float(sum(map(ord, answer)) % 7))
    job = lab.train("letters", say=lambda _: None)
    trained = peak_memory(pid)
    print(f"{job.status} in {time.monotonic() - begun:.0f} s, peak {trained / GIB:.1f} GiB", flush=True)
    print(job.metrics().iloc[0].to_string())
    return [Goal("half_billion_job_gigabytes", max(sampled, trained) / 1e9, "<=", 16)]


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        folder = Path(home) / "half-billion"
        print(f"{write_policy(folder) / 1e6:.0f}M parameters", flush=True)
        model = ModelSettings(
            dtype="bfloat16", device="cpu", gradient_checkpointing="--no-checkpointing" not in sys.argv
        )
        lab = Session(Settings(home=Path(home) / "lab", policy=str(folder), model=model, linger=5))
        try:
            begun = time.monotonic()
            lab.embedded.address()
            loaded = peak_memory(lab.embedded.pid())
            print(f"loaded in {time.monotonic() - begun:.0f} s, peak {loaded / GIB:.1f} GiB", flush=True)
            return conclude(measure(lab))
        finally:
            lab.embedded.stop()
            lab.close()


if __name__ == "__main__":
    sys.exit(main())
