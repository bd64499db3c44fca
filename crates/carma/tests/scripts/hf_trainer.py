"""transformers' Trainer with bf16, evaluation each epoch, accumulated gradients."""
import tempfile

import torch
import transformers

config = transformers.BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
model = transformers.BertForSequenceClassification(config)


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, at):
        ids = torch.arange(32) + at
        return {"input_ids": ids, "attention_mask": (ids < 120).long(), "labels": at % 2}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


arguments = transformers.TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=2, bf16=True, eval_strategy="epoch",
    gradient_accumulation_steps=2, report_to=[], logging_steps=1, save_strategy="epoch", dataloader_num_workers=2,
)
trainer = transformers.Trainer(model, arguments, train_dataset=Texts(), eval_dataset=Texts(), compute_metrics=accuracy)
trainer.train()
print("trained")
