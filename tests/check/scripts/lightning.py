import lightning

if __name__ == "__main__":
    trainer = lightning.Trainer(accelerator="mps", devices=2)  # finds: lightning-refuses-mps
