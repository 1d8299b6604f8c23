"""Trains the simulator's small tokenizer from text that this script makes up.

Run: ``python -m loadtest.simulator.train_tokenizer``. A byte-level BPE of `VOCAB_SIZE` entries with a ChatML-like
template. The text is generated from the word lists below by a seeded generator, so the result is the same on every run
and nothing in it comes from elsewhere.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 6144
OUTPUT = Path(__file__).parent / "tokenizer"
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
CONTROL = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}

# The split that most current byte-level vocabularies use: contractions, words with their leading space, single digits,
# signs, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _words(text: str) -> list[str]:
    return text.split()


FUNCTION_WORDS = _words(
    """
    the a an and or but if then when while because so as of in on at by for with from to into over under between
    after before about through during without within against is are was were be been being has have had do does did
    can could will would should may might must not no yes it its this that these those there here which who what
    where why how all any each every some many few more most less least other another such only own same than too
    very just also still already again once i you he she we they me him her us them my your his our their one two
    three four five six seven eight nine ten
    """
)

STEMS = _words(
    """
    account act add address agent allow amount answer apply area arrange ask assign attach attempt attend balance
    bank base batch begin belong bind block board boat book border borrow bottle branch bread break breathe bridge
    bring budget buffer build burn cache call camera carry castle catch cause change channel charge check choose
    circle city claim class clean clear climb clock close cloud coast code collect color combine come command common
    compare compute connect consider contain context continue control cook copy corner correct cost count country
    course cover create cross cut daily damage dance data deal decide decode deep default define delay deliver
    demand depend describe design detail develop device differ dinner direct discover discuss divide doctor document
    double doubt draw dream drink drive drop early earth east edge edit effect effort eight element emerge employ
    empty enable encode end endpoint engine enjoy enter entry equal error escape even event exact example exchange
    exist expand expect explain explore express extend fact fail fall family farm fast father feature feel fetch
    field fight figure file fill filter final find finish fire first fish fit flag flat flight float floor flow
    flower fly focus follow food force forest forget form forward found frame free fresh friend front fruit full
    function future game garden gate gather general gentle give glass goal gold good govern grade grain grant graph
    grass green ground group grow guard guess guide habit half hand handle hang happen harbor hard harvest hash head
    health hear heart heavy help hide high hill hint history hold home honest hope horse host hotel hour house human
    hundred hunt ice idea image improve include increase index inform input inside install instance instead interest
    island item join journey judge jump keep kernel key kind kitchen know label lake land language large last late
    laugh launch layer lead learn leave left lend length letter level library lift light limit line link list listen
    little live load local lock long look lose loud love low machine main make manage map mark market match matter
    mean measure meet member memory mention message metal method middle mile milk mind minute miss model modern
    moment money month moon morning mother motion mountain move music name narrow nature near need network never
    night node noise normal north note notice number object observe obtain ocean offer office open operate option
    orange order origin output owner pack page paint pair paper parent park part partner party pass past path
    pattern pause peace people perform perhaps period permit person phone phrase picture piece pilot place plain
    plan plant plate play please plenty plug point policy pool poor port position possible post power practice
    prefer prefill prefix prepare present press pretty prevent price print prison private probe problem process
    produce profile program project promise prompt proof propose protect protocol prove provide public pull pump
    purpose push quality query question queue quick quiet quite rain raise random range rapid rate reach read ready
    real reason receive record red reduce refer region release rely remain remember remote remove repair repeat
    replace reply report request require rescue research reserve reset resource respond rest result return review
    rich ride right ring rise risk river road rock role roof room root round route router row rule run safe sail
    salt sample sand save scale scan school science score screen sea search season seat second secret section seed
    seem select sell send sense sentence separate sequence series serve service session set settle seven shadow
    shake shape share sharp sheet shift shine ship shoot shop short should shoulder shout show shut side sign silent
    silver similar simple sing single sister site size skill sky sleep slide slow small smile smooth snow soft soil
    solid solve song sort sound source south space speak special speed spend spin spirit split spot spread spring
    square stable stack staff stage stand star start state station stay steady step stick stock stone stop store
    storm story strange stream street strong structure student study style subject succeed sudden sugar suggest
    summer supply support suppose sure surface surprise sweet swim switch symbol system table take talk tall target
    task taste teach team tell template test text thank thick thin thing think thousand thread thunder ticket tie
    time tiny title token tool top total touch tour tower town trace track trade train transfer travel treat tree
    trip trouble true trust try turn type unit until update upper use usual valley value vary vector verify version
    view village visit voice wait walk wall want warm warn wash watch water wave weather week weight west wheel
    white whole wide wild win wind window winter wire wish woman wonder wood word work world worth write wrong yard
    year yellow young zone
    """
)

SUFFIXES = ["", "", "", "", "s", "s", "ing", "ed", "er", "ly", "ers", "able", "ment", "ness", "less", "ful"]

CODE = _words(
    """
    def return import from class self None True False async await lambda yield raise try except finally with assert
    print len range str int float dict list tuple set open read write append items keys values format join split
    strip json http url path name value index result response request error message messages content role user
    assistant system function arguments parameters properties string integer number boolean array object required
    description const let var export null undefined select where insert update
    """
)

PAIRS = [
    ("role", "user"),
    ("type", "function"),
    ("content", "text"),
    ("status", "ok"),
    ("unit", "celsius"),
    ("name", "search"),
]


def _word(rng: random.Random) -> str:
    if rng.random() < 0.45:
        return rng.choice(FUNCTION_WORDS)
    return rng.choice(STEMS) + rng.choice(SUFFIXES)


def _sentence(rng: random.Random) -> str:
    words = [_word(rng) for _ in range(rng.randint(5, 18))]
    if rng.random() < 0.4:
        words[rng.randrange(len(words) - 1)] += rng.choice([",", ",", ";", ":"])
    words[0] = words[0].capitalize()
    return " ".join(words) + rng.choice([".", ".", ".", "?", "!"])


def _code(rng: random.Random) -> str:
    name, other = rng.choice(STEMS), rng.choice(STEMS)
    lines = [
        f"def {name}_{other}({rng.choice(CODE)}, {rng.choice(CODE)}={rng.randint(0, 999)}):",
        f"    {rng.choice(CODE)} = {rng.choice(CODE)}.{name}({rng.choice(CODE)})",
        f"    return {other}[{rng.randint(0, 99)}] + {rng.choice(CODE)}",
        f"    # {_sentence(rng)}",
    ]
    return "\n".join(lines)


def _json(rng: random.Random) -> str:
    entries = dict(rng.sample(PAIRS, 3))
    entries[rng.choice(STEMS)] = str(rng.randint(0, 10**6))
    return json.dumps(entries, indent=rng.choice([None, 2]))


def corpus(seed: int = 7, paragraphs: int = 9000) -> Iterator[str]:
    """Paragraphs of made-up prose, code and JSON; the same for the same seed."""
    rng = random.Random(seed)
    for word in [*FUNCTION_WORDS, *STEMS, *CODE]:
        yield f" {word} {word} {word.capitalize()} {word.capitalize()} {word}\n {word}"
    for _ in range(paragraphs):
        kind = rng.random()
        if kind < 0.1:
            yield _code(rng)
        elif kind < 0.16:
            yield _json(rng)
        else:
            yield " ".join(_sentence(rng) for _ in range(rng.randint(2, 6))) + rng.choice(["\n", "\n\n"])


CHAT_TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'You may call these functions:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- 'To call one, answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function if call.function else call %}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
            {{- function.arguments if function.arguments is string else function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""".strip()


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer=trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL if token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in SPECIAL if token not in CONTROL])
    return tokenizer


def config(tokenizer: Tokenizer) -> dict[str, object]:
    """The content of tokenizer_config.json, in the form that Hugging Face tokenizers are published in."""
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in CONTROL,
        }
        for token in SPECIAL
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": dict(sorted(added.items(), key=lambda item: int(item[0]))),
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "chat_template": CHAT_TEMPLATE,
    }


def main(output: Path = OUTPUT) -> None:
    tokenizer = train()
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(output / "tokenizer.json"), pretty=False)
    text = json.dumps(config(tokenizer), indent=1, ensure_ascii=False) + "\n"
    (output / "tokenizer_config.json").write_text(text, encoding="utf-8")
    sys.stdout.write(f"{tokenizer.get_vocab_size()} entries in {output}\n")


if __name__ == "__main__":
    main()
