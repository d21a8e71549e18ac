from zerocalc.cli import new_app

app = new_app()


@app.command()
def x() -> None:
    pass
