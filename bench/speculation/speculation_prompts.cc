#include "bench/speculation/speculation_prompts.h"

namespace withy::bench {
namespace {

const char kStaff[] =
    "Name: Anna Keller, role: engineer, city: Basel, phone: 061 555 01 17\n"
    "Name: Bruno Marti, role: accountant, city: Bern, phone: 031 555 02 44\n"
    "Name: Carla Rossi, role: engineer, city: Lugano, phone: 091 555 03 81\n"
    "Name: David Weber, role: designer, city: Zurich, phone: 044 555 04 29\n"
    "Name: Elena Novak, role: engineer, city: Geneva, phone: 022 555 05 63\n";

const char kMinutes[] =
    "The committee met on Tuesday at nine. Mrs Keller opened the meeting and read the minutes of "
    "the last one, which were accepted. Mr Marti reported that the new boiler costs 14,300 francs "
    "and that the supplier can deliver it in the second week of October. Mrs Rossi asked whether "
    "the old pipes can stay. Mr Weber said that the plumber has looked at them and that they will "
    "last ten more years. The committee decided to order the boiler. The next meeting is on the "
    "fourth of November at nine.";

const char kCode[] =
    "def mean(values):\n"
    "    total = 0\n"
    "    for value in values:\n"
    "        total = total + value\n"
    "    return total / len(values)\n"
    "\n"
    "def variance(values):\n"
    "    center = mean(values)\n"
    "    total = 0\n"
    "    for value in values:\n"
    "        total = total + (value - center) ** 2\n"
    "    return total / len(values)\n";

}  // namespace

const std::vector<PromptKind>& SpeculationPrompts() {
  static const auto* const kinds = new std::vector<PromptKind>{
      {"chat",
       {"What is the capital of France, and what is it known for?",
        "How do I boil an egg so that the yolk stays soft?", "Why is the sky blue?",
        "What should I take with me on a day's walk in the mountains?"}},
      {"extraction",
       {std::string("List the name and phone of every engineer, one a line, as they stand in this "
                    "table.\n\n") +
            kStaff,
        std::string("Copy the sentences about the boiler from these minutes, word for word.\n\n") +
            kMinutes,
        std::string("Repeat the whole table exactly as it is.\n\n") + kStaff,
        std::string("Which sentences of this text name a person? Copy them.\n\n") + kMinutes}},
      {"edits",
       {std::string("Rename the variable total to sum in this program and print all of it.\n\n") +
            kCode,
        std::string("Replace Tuesday by Thursday in this text and write all of it again.\n\n") +
            kMinutes,
        std::string("Add a docstring to each function and print the whole program.\n\n") + kCode,
        std::string("Correct the spelling of this text and write it again.\n\n") + kMinutes}},
      {"structured",
       {std::string("Write this table as a JSON array of objects with the keys name, role, city "
                    "and phone.\n\n") +
            kStaff,
        std::string("Write this table as CSV with a header line.\n\n") + kStaff,
        "Write a JSON array of the twelve months, each an object with the keys month, number and "
        "days.",
        "Write an HTML table of the planets of the solar system with the columns name, order and "
        "moons."}},
      {"creative",
       {"Write a short story about a lighthouse keeper who finds a letter in a bottle.",
        "Write a poem about the first snow in a large city.",
        "Invent a dialogue between a clock and a calendar.",
        "Describe a market on a planet with two suns."}}};
  return *kinds;
}

}  // namespace withy::bench
