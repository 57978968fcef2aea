"""Information extraction: product titles as sellers type them, to records with few fields and few values."""

import random
from typing import NamedTuple

from regard.data.corpora.core import Splits, belongs, draw_splits
from regard.types import Example

TEST, DEV = 1000, 500

BRANDS = (
    *("acme", "borvik", "drumlo", "felzon", "gurrit", "jaspelo", "kremto", "mibaru", "nolvex", "purrido"),
    *("quarzel", "tovanna", "wexlin", "zibbu"),
)
COLOURS = {  # by the value in a record: the spellings in titles
    "black": ("black", "schwarz", "noir", "negro", "nero", "blk"),
    "blue": ("blue", "blau", "bleu", "azul", "blu"),
    "green": ("green", "grün", "vert", "verde", "grn"),
    "grey": ("grey", "gray", "grau", "gris", "grigio"),
    "red": ("red", "rot", "rouge", "rojo", "rosso"),
    "white": ("white", "weiß", "blanc", "blanco", "bianco", "wht"),
    "yellow": ("yellow", "gelb", "jaune", "amarillo", "giallo"),
}
UNITS = {  # by the value in a record: the spellings in titles
    "cm": ("cm", "CM", "centimetre", "Zentimeter"),
    "g": ("g", "gr", "Gramm", "grams"),
    "kg": ("kg", "KG", "kilo"),
    "l": ("l", "L", "ltr", "Liter", "litre"),
    "ml": ("ml", "ML", "Milliliter", "millilitre"),
}
AMOUNTS = {
    "cm": ("10", "15", "20", "30", "45", "60", "120"),
    "g": ("50", "100", "125", "250", "400", "500"),
    "kg": ("1", "1.5", "2", "2.5", "5", "10"),
    "l": ("0.5", "0.75", "1", "1.5", "2", "5"),
    "ml": ("50", "100", "200", "250", "330", "500", "750"),
}
LETTERS = ("XS", "S", "M", "L", "XL", "XXL")  # sizes of clothes
PACKS = ("2", "3", "4", "6", "8", "10", "12")
PACK_PHRASES = ("{}er-Pack", "{}er Set", "pack of {}", "{}-pack", "{} Stück", "lot de {}", "x{}")
PRODUCTS = {  # by the units in which they are sold; "" means sizes in LETTERS
    ("",): ("T-Shirt", "Hoodie", "jacket", "Socken", "pullover", "Hose"),
    ("cm",): ("Kissen", "ruler", "Kabel", "shelf", "Lampe", "frame"),
    ("g", "kg"): ("coffee", "Reis", "flour", "Nudeln", "muesli", "sugar"),
    ("ml", "l"): ("shampoo", "juice", "Farbe", "paint", "Seife", "bottle"),
}
NOISE = (
    *("NEU", "new", "top", "Sale", "Angebot", "original", "super", "gratis", "!!!", "***", "%", "|", "-", "+"),
    *("😊", "🔥", "✨", "🎁", "⭐", "👍", "🚚"),
)
SHORTEST_TYPO = 6  # letters; shorter words get no typos, which could turn one value into another


class Record(NamedTuple):
    """The fields of a title in the order of the target; "" for a field that the title does not name."""

    brand: str
    size: str
    colour: str
    pack: str

    def __str__(self) -> str:
        return ";".join(f"{field}={value}" for field, value in self._asdict().items() if value)


def titles(seed: int, size: int) -> Splits:
    """A product's title to its record: `Acme Seife BLAU 😊 500ml` to `brand=acme;size=500 ml;colour=blue`.

    It tests beam search: most characters of a target are nearly certain, and a field that the title does not name is
    left out, so that a target may end after any of its fields. Titles have colours and units in several languages,
    abbreviations, typos, upper and lower case, emoji and noise words; the values are few. `group` is the number of
    fields. No title is in two splits. Dev and test are the same for every seed and size. All brands are invented.
    """
    return draw_splits("titles", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    """A random title whose checksum assigns it to the split, and its record, which is not empty."""
    while True:
        text, record = _draw(generator)
        if belongs(text, split) and any(record):
            return Example(text, str(record), group=str(sum(map(bool, record))))


def _draw(generator: random.Random) -> tuple[str, Record]:
    units = generator.choice(tuple(PRODUCTS))
    brand = generator.choice(BRANDS) if generator.random() < 0.9 else ""
    size, size_text = _size(units, generator) if generator.random() < 0.75 else ("", "")
    colour = generator.choice(tuple(COLOURS)) if generator.random() < 0.6 else ""
    pack = generator.choice(PACKS) if generator.random() < 0.4 else ""
    product = [_spelled(brand.capitalize(), generator), _spelled(generator.choice(PRODUCTS[units]), generator)]
    details = [
        size_text,
        _spelled(generator.choice(COLOURS[colour]), generator) if colour else "",
        generator.choice(PACK_PHRASES).format(pack) if pack else "",
        *generator.choices(NOISE, k=generator.choice((0, 0, 1, 1, 2))),
    ]
    generator.shuffle(details)
    return " ".join(filter(None, [*product, *details])), Record(brand, size, colour, pack)


def _size(units: tuple[str, ...], generator: random.Random) -> tuple[str, str]:
    """A random size, as written in the record and as written in the title."""
    unit = generator.choice(units)
    if not unit:
        letters = generator.choice(LETTERS)
        return letters.lower(), generator.choice(("{}", "Gr. {}", "size {}")).format(letters)
    amount = generator.choice(AMOUNTS[unit])
    typed = generator.choice((amount, amount.replace(".", ",")))
    return f"{amount} {unit}", typed + generator.choice(("", " ")) + generator.choice(UNITS[unit])


def _spelled(word: str, generator: random.Random) -> str:
    """The word as given, in lower or in upper case, sometimes with a typo: a letter doubled, dropped or swapped."""
    if len(word) >= SHORTEST_TYPO and generator.random() < 0.15:
        index = generator.randrange(1, len(word) - 1)  # neither the first letter nor the last
        before, letter, after = word[:index], word[index], word[index + 1 :]
        doubled, dropped, swapped = letter * 2 + after, after, after[0] + letter + after[1:]
        word = before + generator.choice((doubled, dropped, swapped))
    return generator.choice((word, word, word.lower(), word.upper()))
