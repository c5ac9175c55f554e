"""The words and facts that the practice policy is made on."""

CAPITALS = {
    "Argentina": "Buenos Aires", "Australia": "Canberra", "Austria": "Vienna", "Belgium": "Brussels",
    "Brazil": "Brasilia", "Canada": "Ottawa", "Chile": "Santiago", "China": "Beijing", "Cuba": "Havana",
    "Denmark": "Copenhagen", "Egypt": "Cairo", "England": "London", "Finland": "Helsinki", "France": "Paris",
    "Germany": "Berlin", "Greece": "Athens", "Hungary": "Budapest", "India": "Delhi", "Ireland": "Dublin",
    "Italy": "Rome", "Japan": "Tokyo", "Kenya": "Nairobi", "Mexico": "Mexico City", "Norway": "Oslo", "Peru": "Lima",
    "Poland": "Warsaw", "Portugal": "Lisbon", "Russia": "Moscow", "Scotland": "Edinburgh", "Spain": "Madrid",
    "Sweden": "Stockholm", "Switzerland": "Bern", "Thailand": "Bangkok", "Turkey": "Ankara", "Ukraine": "Kyiv",
    "Vietnam": "Hanoi",
}  # fmt: skip

OPPOSITES = {
    "big": "small", "hot": "cold", "up": "down", "left": "right", "day": "night", "good": "bad", "fast": "slow",
    "light": "dark", "old": "new", "open": "closed", "full": "empty", "happy": "sad", "high": "low", "long": "short",
    "wet": "dry", "rich": "poor", "hard": "soft", "early": "late", "in": "out", "loud": "quiet",
}  # fmt: skip

SOUNDS = {
    "cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink", "lion": "roar",
    "bee": "buzz", "frog": "croak", "owl": "hoot",
}  # fmt: skip

COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a lemon": "yellow", "blood": "red",
    "an orange": "orange", "milk": "white", "a banana": "yellow", "a leaf": "green", "the sun": "yellow",
    "the sea": "blue", "a carrot": "orange", "a tomato": "red", "chocolate": "brown",
}  # fmt: skip

SUCCESSORS = {
    "Monday": "Tuesday", "Tuesday": "Wednesday", "Wednesday": "Thursday", "Thursday": "Friday", "Friday": "Saturday",
    "Saturday": "Sunday", "Sunday": "Monday", "January": "February", "February": "March", "March": "April",
    "April": "May", "May": "June", "June": "July", "July": "August", "August": "September", "September": "October",
    "October": "November", "November": "December", "December": "January", "one": "two", "two": "three",
    "three": "four", "four": "five", "five": "six", "spring": "summer", "summer": "autumn", "autumn": "winter",
}  # fmt: skip

PROPERTIES = {
    "ice": ("cold", "hot"), "fire": ("hot", "cold"), "water": ("wet", "dry"), "the sun": ("bright", "dark"),
    "an elephant": ("big", "small"), "a mouse": ("small", "big"), "a stone": ("hard", "soft"),
    "a pillow": ("soft", "hard"), "sugar": ("sweet", "salty"), "the sea": ("salty", "sweet"),
    "a snail": ("slow", "fast"), "a rocket": ("fast", "slow"), "a tower": ("tall", "short"),
    "the night": ("dark", "bright"), "a feather": ("light", "heavy"), "a whale": ("heavy", "light"),
}  # fmt: skip

EVENTS = (
    "will it rain", "will it snow", "will the sun shine", "will I win", "will my team win", "will she call me",
    "will he come", "will we meet", "will the train be late", "will I be rich", "will the price go up",
    "will I find a job", "will they agree", "will I be lucky", "should I go out", "should I call her", "should I wait",
)  # fmt: skip

MOMENTS = ("", " today", " tomorrow", " tonight", " soon", " this week", " next week", " next year", " on Monday")

WORDS = (
    "hello", "hi", "cat", "dog", "tree", "apple", "house", "river", "stone", "bird", "yes", "no", "maybe", "please",
    "thanks", "water", "fire", "book", "table", "chair", "window", "door", "garden", "flower", "mountain", "sun",
    "moon", "star", "cloud", "rain", "snow", "wind", "summer", "winter", "red", "blue", "green", "yellow", "black",
    "white", "one", "two", "three", "bread", "milk", "cheese", "orange", "lemon", "banana", "fish", "horse", "cow",
    "sheep", "lion", "tiger", "bear", "fox", "wolf", "mouse", "frog", "duck", "car", "train", "plane", "boat", "bike",
    "music", "dance", "song", "paper", "pencil", "coffee", "tea", "sugar", "salt", "pepper", "world", "peace", "love",
    "time", "day", "night", "morning", "friend", "child", "mother", "father", "king", "queen", "castle", "bridge",
    "street", "city", "banjo", "robot", "rocket", "pizza", "potato", "tomato", "happy", "monkey", "python", "ok",
    "Hello", "Paris", "London", "Anna", "Tom", "good morning", "good night", "hello world", "thank you",
)  # fmt: skip

TIMES = {1: "once", 2: "twice", 3: "three times", 4: "four times", 5: "five times", 6: "six times"}

SMALL_TALK = {
    "Hello!": ("hi", "hello", "hey", "hi there", "hello there", "good day", "hey there", "hi!", "hello!", "greetings"),
    "Good morning!": ("good morning", "morning", "a good morning to you"),
    "Good night!": ("good night", "night", "sleep well", "I am going to bed"),
    "I am fine, thank you.": (
        "how are you", "how are you?", "how do you do?", "are you well?", "how is it going?", "how are you today?",
        "what's up?", "how are things?", "hi, how are you?", "hello, how are you?",
    ),
    "You are welcome.": ("thanks", "thank you", "thank you!", "thanks a lot", "many thanks", "great, thanks", "thx"),
    "Goodbye!": ("bye", "goodbye", "see you", "see you later", "bye bye", "see you tomorrow", "I have to go"),
    "I am a small practice policy.": (
        "who are you?", "what are you?", "what is your name?", "are you a robot?", "tell me about yourself",
        "are you human?", "what's your name?", "who made you?", "are you a person?",
    ),
    "I can sort letters, say words and answer short questions.": (
        "what can you do?", "help", "what do you know?", "can you help me?", "help me", "what can I ask?",
        "what can I ask you?", "what are you good at?",
    ),
    "I like it too.": ("I like music", "I like tea", "I like summer", "I love books", "I like cats", "I like pizza"),
    "I am glad.": ("well done", "good job", "very good", "nice", "great", "you are right", "good", "perfect", "cool"),
    "Sorry.": ("that is wrong", "you are wrong", "no, that is wrong", "bad answer", "not good", "wrong"),
}  # fmt: skip

UNKNOWN = "Sorry, I do not know that."

NEEDS_CALCULATOR = "I need a calculator for that."

UNKNOWN_REQUESTS = (
    "write a {} about {}", "explain {1} to me", "what is the meaning of {1}?", "tell me a {} about {}",
    "why is {1} so important?", "how does {1} work?", "translate {1} into French", "summarise this {}",
    "give me a {} for {}", "who invented {1}?", "when did {1} begin?", "what do you think about {1}?", "describe {1}",
    "read me a {}", "how do I make {1}?", "find a {} on {}", "what is {1}?", "list ten facts about {1}",
    "where can I buy {1}?",
)  # fmt: skip

TEXTS = ("poem", "story", "joke", "song", "letter", "program", "function", "recipe", "report", "text", "book", "plan")

TOPICS = (
    "love", "physics", "the war", "music", "computers", "the internet", "football", "cats", "history", "money",
    "python", "the economy", "quantum theory", "bread", "life", "the moon landing", "law", "democracy", "chess",
    "art", "electricity", "trees", "space", "dreams", "engines", "medicine", "neural networks", "a good holiday",
)  # fmt: skip
