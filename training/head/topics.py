"""Word lists of the head's prompts: topics, questions, tasks. No logic."""

from __future__ import annotations


def lines(text: str) -> list[str]:
    """One item a line; `\\n` in an item is a line break."""
    return [line.strip().replace("\\n", "\n") for line in text.strip().splitlines()]


def items(text: str) -> list[str]:
    """Items separated by semicolons, wherever the lines break."""
    return [" ".join(item.split()) for item in text.split(";")]


TOPICS = items("""
    photosynthesis; the water cycle; gravity; black holes; volcanoes; the French Revolution; the Roman
    Empire; inflation; supply and demand; the stock market; electric cars; solar power; wind turbines;
    nuclear energy; climate change; recycling; deforestation; coral reefs; penguins; elephants; honey
    bees; dolphins; wolves; sharks; dinosaurs; the human heart; the immune system; vaccines; vitamins;
    sleep; meditation; yoga; running; swimming; football; chess; basketball; tennis; baking bread;
    making coffee; tea; cheese; pasta; chocolate; gardening; growing tomatoes; composting; houseplants;
    learning a language; learning the piano; the guitar; classical music; jazz; painting; photography;
    film making; architecture; bridges; trains; airplanes; rockets; the Moon; Mars; the Solar System;
    stars; the Big Bang; atoms; electricity; magnets; light; sound; heat; algebra; geometry;
    probability; prime numbers; fractions; statistics; the internet; computers; smartphones; search
    engines; email; passwords; encryption; databases; SQL; operating systems; Linux; Git; version
    control; unit tests; debugging; recursion; sorting algorithms; hash tables; linked lists; binary
    trees; graphs; machine learning; neural networks; large language models; chatbots; robots; video
    games; social media; online shopping; saving money; budgets; mortgages; insurance; taxes; job
    interviews; time management; public speaking; teamwork; leadership; remote work; stress; friendship;
    families; schools; universities; libraries; museums; Shakespeare; poetry; novels; newspapers;
    democracy; elections; human rights; the law; the United Nations; the Renaissance; the Middle Ages;
    ancient Egypt; ancient Greece; the Industrial Revolution; World War II; the printing press; Paris;
    London; Tokyo; New York; India; Brazil; Australia; Antarctica; the Amazon rainforest; the Sahara;
    the Pacific Ocean; mountains; rivers; islands; hurricanes; earthquakes; rainbows; the seasons;
    weather forecasts; farming; bicycles; traffic; city planning; houses; furniture
""")
ASK = lines("""
    Explain {q}.
    Explain {q} to a child.
    What should I know about {q}?
    Tell me about {q}.
    Write a short paragraph about {q}.
    Give me three facts about {q}.
    List five things that matter about {q}.
    Why is {q} interesting?
    What are common mistakes people make about {q}?
    What are the advantages and disadvantages of {q}?
    Write a few sentences about {q} for a school newspaper.
    How did {q} change over time?
    What questions could a teacher ask about {q}?
    Describe {q} in simple words.
    I want to learn about {q}. Where do I start?
    Write an introduction to an essay on {q}.
    Summarize what is known about {q} in four sentences.
    What is the most important idea behind {q}?
    hi, can you help me understand {q}?
    Make a short quiz on {q} with answers.
""")
CHAT = lines("""
    Hi!
    Hello, how are you?
    Who are you?
    What can you do?
    What is your name?
    Can you help me with my homework?
    I feel tired today. What should I do?
    I am bored. Any ideas?
    Tell me a joke.
    Tell me something I do not know.
    What is the capital of France?
    What is the capital of Japan?
    How many days are in a year?
    Which is larger, the Sun or the Earth?
    What is 12 times 8?
    If a train travels 60 miles in 2 hours, how fast is it?
    I have 3 apples and buy 5 more. I eat 2. How many do I have?
    Who wrote Romeo and Juliet?
    What is a good name for a cat?
    What should I cook for dinner with rice, eggs and peppers?
    Suggest a weekend trip with children.
    How do I make new friends in a new city?
    How can I sleep better?
    How do I remove a coffee stain from a shirt?
    How do I boil an egg?
    What is the best way to learn to program?
    Which programming language should I learn first?
    How do I stay motivated while studying?
    How can I write better reports?
    What makes a good teacher?
    Can you recommend a book?
    Explain the rules of chess.
    What should I bring on a hike?
    How do I set up a budget?
    How do I prepare for a job interview?
    What are healthy snacks?
    Is it better to rent or to buy a house?
    Why is the sky blue?
    Why do cats purr?
    How do airplanes fly?
    What happens when water freezes?
    Why do leaves change color in autumn?
    What does a software engineer do?
    What is the meaning of life?
    Thanks for your help!
    What is the difference between weather and climate?
    What is the difference between a virus and a bacterium?
    What is the difference between speed and velocity?
    How do I fix a flat tire?
    How many continents are there?
""")
FOLLOW_UPS = lines("""
    Can you give an example?
    Can you explain that in more detail?
    Please make it shorter.
    Why?
    Thanks. What should I do next?
    Can you write that as a list?
    Are you sure?
    What else should I know?
    Rewrite that in simpler words.
    Continue.
    How does that work in practice?
    Now show me how to do this in Python.
""")
TASKS = items("""
    reverses a string; counts the vowels in a text; returns the largest number of a list; checks whether
    a word is a palindrome; computes the factorial of a number; returns the first n Fibonacci numbers;
    merges two dictionaries; removes duplicates from a list; flattens a nested list; sorts a list of
    tuples by the second element; reads a CSV file and prints its rows; counts how often each word
    occurs in a file; downloads a web page; parses a date; converts Celsius to Fahrenheit; generates a
    random password; finds the common elements of two lists; computes the average of a list of numbers;
    rotates a list by k places; checks whether a string is a valid email address; writes a dictionary to
    a JSON file; lists all files in a folder; renames all files in a folder; computes the greatest
    common divisor; performs a binary search; implements a queue with two stacks; checks for balanced
    parentheses; multiplies two matrices; transposes a matrix; counts the lines of a file; finds the
    longest word in a sentence; capitalizes each word; splits a list into chunks; groups records by key;
    computes the distance between two points; retries a function three times; measures how long a
    function takes; logs messages to a file; sends an HTTP request; validates a credit card number;
    converts a number to binary; sums the digits of a number; finds the second largest number; generates
    all permutations; removes punctuation from a text; implements a simple calculator; simulates a dice
    roll; prints a multiplication table; compares two files; finds all anagrams in a list of words
""")
WRITE = lines("""
    Write a Python function that {q}.
    Write a function in Python that {q}. Add a docstring.
    Implement a Python function that {q} and show how to use it.
    Show me code that {q}.
    Write a Python class with a method that {q}.
    Write a JavaScript function that {q}.
    How do I write a Python program that {q}?
    Write a test for a function that {q}.
    Write a docstring for a function that {q}.
    Write a C program that {q}.
    Write a few sentences about a program that {q}.
    Explain step by step how to write code that {q}.
""")
CONCEPTS = items("""
    a generator; a decorator; a context manager; a list comprehension; a lambda; a closure; an iterator;
    a class; an instance; inheritance; an abstract base class; a dataclass; an exception; a module; a
    package; a virtual environment; a docstring; a type hint; a set; a dictionary; a frozenset; a
    string; bytes; slicing; unpacking; a global variable; a default argument; a keyword argument; duck
    typing; garbage collection; the GIL; a thread; a process; a coroutine; an event loop; a lock; a
    queue; a semaphore; a regular expression; a file object; a socket; a JSON document; a pickle; an
    enum; a property; a metaclass; a mixin; monkey patching; a stack trace; a breakpoint; a linter; a
    formatter; a wheel; a dependency; a race condition; a deadlock; a memory leak
""")
CONCEPT_ASK = lines("""
    What is {q} in Python?
    Explain {q} with an example.
    When should I use {q}?
    Why would a program need {q}?
    What is the difference between {q} and {r}?
    What can go wrong with {q}?
    Show a short example of {q} in Python.
    How do I explain {q} to a beginner?
""")
SYSTEMS = lines("""
    You are a helpful assistant.
    You are a concise assistant. Answer in one or two sentences.
    You are an expert Python programmer.
    You are a patient teacher.
    Answer with JSON only.
""")
PRODUCTS = items("""
    notebook; desk lamp; office chair; keyboard; headphones; coffee mug; backpack; water bottle; phone
    case; monitor; garden hose; tent; raincoat; bread knife; frying pan; wall clock; board game; camera;
    printer; sofa
""")
EDITS = lines("""
    Fix the spelling mistakes in this text:\\n{t}
    Make this text shorter:\\n{t}
    Rewrite this text in a friendlier tone:\\n{t}
    Rewrite this in the past tense:\\n{t}
    Put this text into bullet points:\\n{t}
    Make this sound more formal:\\n{t}
    Repeat this text:\\n{t}
""")
READING = lines("""
    Summarize this text:\\n{t}
    Summarize in one sentence:\\n\\n{t}
    What is this text about?\\n{t}
    {t}\\n\\nExplain this in simple words.
    {t}\\n\\nGive three keywords for this text.
    List the main points of this text:\\n{t}
    Write two questions that this text answers:\\n{t}
    Continue this text:\\n{t}
""")
CODE_EDITS = lines("""
    Add a docstring to this function:\\n{t}
    Add type hints to this code:\\n{t}
    Add comments to this code:\\n{t}
    Explain what this code does:\\n{t}
    Find the bug in this code, if there is one:\\n{t}
    Simplify this code:\\n{t}
    Write a test for this function:\\n{t}
    Add a print statement at the beginning of this function:\\n{t}
    Repeat this code without changes:\\n{t}
    Convert this code to JavaScript:\\n{t}
""")
DISHES = items("""
    pancakes; tomato soup; fried rice; apple pie; lentil stew; pizza; potato salad; chicken curry;
    banana bread; mushroom risotto; tacos; chocolate cake; spring rolls; vegetable lasagna; garlic
    bread; pumpkin soup; scrambled eggs; fish stew; rice pudding; oatmeal cookies; a Greek salad; noodle
    soup; stuffed peppers
""")
PLANS = items("""
    a birthday party; a camping trip; a school garden; a small bakery; a book club; a charity run; a
    wedding; a move to another city; a science fair; a garage sale; a neighborhood festival; a bicycle
    tour; a photo exhibition; a coding club; a picnic; a podcast; a marathon; a home office; a surprise
    dinner; a community library
""")
CREATE = lines("""
    Write a poem about {q}.
    Write a short song about {q}.
    Write a speech about {q}.
    Write a news article about {q}.
    Write a blog post about {q}.
    Write a riddle about {q}.
    Write a slogan for {q}.
    Write a tweet about {q}.
    Write a diary entry about {q}.
    Describe a photo that shows {q}.
    Invent a board game about {q} and explain its rules.
    Write a description of a museum of {q}.
    Compare {q} and {r}.
    Which is more important, {q} or {r}? Argue both sides.
    Give me ten ideas for a project on {q}.
    Write an advertisement for a course on {q}.
    Write an outline of a book about {q}.
    Imagine a world without {q}. What would be different?
""")
PRACTICAL = lines("""
    Give me a recipe for {dish}.
    How do I make {dish}? List ingredients and steps.
    What can I serve with {dish}?
    Write a shopping list for {dish}.
    How do I plan {plan}?
    Make a checklist for {plan}.
    Write an invitation to {plan}.
    What could go wrong with {plan}, and how do I prepare for it?
    Suggest a budget for {plan}.
    Write a product description for a {product}.
    Write a review of a {product}.
    How do I choose a good {product}?
    What can I do with an old {product}?
    Plan a weekend in {city}.
    What should I see in {city}?
    Describe a rainy morning in {city}.
    What does a {job} do all day?
    Write five interview questions for a {job}.
    Write a short biography of {name}, a {job} from {city}.
    What should I study to become a {job}?
    Write a note of thanks to a {job}.
    Describe a good {job} in three sentences.
""")
