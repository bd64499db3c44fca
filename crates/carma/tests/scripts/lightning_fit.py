"""PyTorch Lightning on one GPU."""
import torch

try:
    import lightning
except ImportError:
    import pytorch_lightning as lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512)

    def training_step(self, batch, _):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.layer(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1000, 512)), batch_size=32)
trainer = lightning.Trainer(accelerator="gpu", devices=1, max_epochs=3, logger=False, enable_checkpointing=False)
trainer.fit(Module(), loader, loader)
