#include "offline/corpus/author.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace withy::corpus {
namespace {

using std::string_view;

constexpr std::array<string_view, 10> kOnsets = {"b", "d", "f", "k", "l", "m", "n", "r", "s", "t"};
constexpr std::array<string_view, 4> kVowels = {"a", "e", "i", "o"};
constexpr std::array<string_view, 4> kCodas = {"n", "s", "l", "r"};
constexpr std::array<string_view, 6> kPlaceEndings = {"ton",   "dale", "port",
                                                      "field", "burg", "ham"};

constexpr std::array<string_view, 24> kVerbs = {
    "set",    "send", "find",  "open",   "play",   "start", "stop",   "add",
    "remove", "show", "book",  "order",  "cancel", "share", "save",   "call",
    "move",   "copy", "check", "update", "rate",   "print", "rename", "track"};
constexpr std::array<string_view, 32> kNouns = {
    "alarm",   "timer",  "message", "note", "photo",  "song",   "list",   "event",
    "meeting", "ticket", "table",   "taxi", "room",   "lamp",   "heater", "camera",
    "door",    "radio",  "report",  "file", "route",  "lesson", "recipe", "parcel",
    "plant",   "game",   "video",   "map",  "letter", "bill",   "bag",    "box"};
constexpr std::array<string_view, 16> kAdjectives = {
    "red",   "blue", "green", "old",   "new",  "small", "big",    "round",
    "heavy", "long", "short", "clean", "warm", "cold",  "yellow", "quiet"};
constexpr std::array<string_view, 7> kWeekdays = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                                  "Friday", "Saturday", "Sunday"};
constexpr std::array<string_view, 12> kMonths = {"January",   "February", "March",    "April",
                                                 "May",       "June",     "July",     "August",
                                                 "September", "October",  "November", "December"};
constexpr std::array<string_view, 16> kJobs = {
    "baker", "teacher", "nurse",  "driver", "painter", "farmer",  "lawyer", "singer",
    "cook",  "pilot",   "doctor", "tailor", "writer",  "plumber", "guard",  "clerk"};

constexpr std::array<string_view, 20> kSmallWords = {
    "the", "is", "in",  "of",    "a",     "has",   "on",  "at",   "for",  "to",
    "it",  "as", "now", "place", "thing", "there", "one", "says", "that", "called"};

// 64-bit FNV-1a, so that an entity's split depends only on its letters.
uint64_t HashName(string_view name) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash ^ (hash >> 29);
}

}  // namespace

std::string Pair::Join(string_view with) const {
  std::string text = first;
  text += with;
  text += second;
  return text;
}

bool IsHeldOutEntity(string_view name) { return HashName(name) % 6 == 0; }

std::string Fill(string_view text, std::initializer_list<string_view> args) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool slot =
        text[i] == '%' && i + 1 < text.size() && text[i + 1] >= '1' && text[i + 1] <= '9';
    if (!slot) {
      out += text[i];
      continue;
    }
    const size_t index = static_cast<size_t>(text[++i] - '1');
    if (index < args.size()) out += *(args.begin() + index);
  }
  return out;
}

string_view Author::Any(std::span<const string_view> words) {
  return words[rng_.Below(static_cast<uint32_t>(words.size()))];
}

std::string Author::Say(const Wordings& list, std::initializer_list<string_view> args) {
  const size_t held_out = std::max<size_t>(1, list.texts.size() / 4);
  const size_t train = list.texts.size() - held_out;
  const size_t index = split_ == Split::kTrain
                           ? rng_.Below(static_cast<uint32_t>(train))
                           : train + rng_.Below(static_cast<uint32_t>(held_out));
  wordings_.push_back(std::string(list.name) + "/" + std::to_string(index));
  if (garbled_percent_ > 0 && Chance(garbled_percent_))
    return Fill(Garble(list.texts[index]), args);
  return Fill(list.texts[index], args);
}

std::string Author::Garble(string_view text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto place = [&](size_t count) {
    return static_cast<ptrdiff_t>(rng_.Below(static_cast<uint32_t>(count)));
  };
  if (Chance(40)) std::rotate(words.begin(), words.begin() + place(words.size()), words.end());
  if (Chance(30)) {
    const auto left_out = words.begin() + place(words.size());
    if (left_out->find('%') == std::string::npos) words.erase(left_out);
  }
  for (int more = Between(0, 3); more > 0; --more) {
    words.insert(words.begin() + place(words.size() + 1), std::string(Any(kSmallWords)));
  }
  std::string garbled;
  for (const std::string& word : words) garbled += (garbled.empty() ? "" : " ") + word;
  return garbled;
}

bool Author::Owns(string_view name) const {
  return IsHeldOutEntity(name) == (split_ == Split::kHeldOut);
}

std::string Author::Syllables(int count, bool coda) {
  std::string name;
  for (int i = 0; i < count; ++i) {
    name += Any(kOnsets);
    name += Any(kVowels);
  }
  if (coda) name += Any(kCodas);
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

std::string Author::Person() {
  std::string name;
  do {
    name = Syllables(Chance(75) ? 2 : 3, Chance(50));
  } while (!Owns(name));
  Use(name);
  return name;
}

std::string Author::Place() {
  std::string name;
  do {
    name = Syllables(2, false);
    name += Any(kPlaceEndings);
  } while (!Owns(name));
  Use(name);
  return name;
}

Pair Author::Command() {
  Pair pair;
  do {
    pair = {std::string(Any(kVerbs)), std::string(Any(kNouns))};
  } while (!Owns(pair.Join(" ")));
  Use(pair.Join(" "));
  return pair;
}

Pair Author::Thing() {
  Pair pair;
  do {
    pair = {std::string(Any(kAdjectives)), std::string(Any(kNouns))};
  } while (!Owns(pair.Join(" ")));
  Use(pair.Join(" "));
  return pair;
}

Pair Author::NearCommand(const Pair& command) {
  Pair near;
  do {
    near = command;
    if (Chance(50)) {
      near.first = Any(kVerbs);
    } else {
      near.second = Any(kNouns);
    }
  } while (near == command || !Owns(near.Join(" ")));
  Use(near.Join(" "));
  return near;
}

std::span<const string_view> Weekdays() { return kWeekdays; }
std::span<const string_view> Months() { return kMonths; }
std::span<const string_view> Jobs() { return kJobs; }
std::span<const string_view> Nouns() { return kNouns; }

}  // namespace withy::corpus
