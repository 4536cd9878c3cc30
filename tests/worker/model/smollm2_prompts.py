"""What tests of the default model ask it."""

from pathlib import Path

import transformers

QUESTIONS = (
    "What is the capital of France?",
    "Say hi.",
    "Name three colours.",
    "Why is the sky blue?",
    "What is 7 times 8?",
    "Write one line about the sea.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "List two primes above 10.",
    "What does a compiler do?",
    "How many legs has a spider?",
    "Give me a word that rhymes with 'light'.",
    "What is the boiling point of water?",
    "Tell me a joke.",
    "What is gravity?",
    "Name a river in Egypt.",
)
TEXTS = (
    "Once upon a time",
    "The quick brown fox",
    "def fibonacci(n):\n",
    "In the beginning",
)


def twenty_prompts(folder: Path) -> list[list[int]]:
    """Ids of the questions as chats, and of the texts."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    return chats + [tokenizer.encode(text) for text in TEXTS]
