// Task: choose a UI action from a screen listing: tap(id), type(id, text), or none if a switch is
// already in the requested state.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "offline/corpus/tasks.h"

namespace withy::corpus {
namespace {

using std::string_view;

constexpr std::array<string_view, 8> kPressTexts = {
    "Press %1.",           "Tap on %1.",           "Please press %1.",
    "I want to press %1.", "Could you tap on %1?", "Go and press %1.",
    "Please tap on %1.",   "Now tap on %1."};
constexpr Wordings kPress = {"ui.press", kPressTexts};
constexpr std::array<string_view, 8> kTypeTexts = {
    "Write %1 in %2.",           "Please write %1 in %2.", "Type %1 in %2.",
    "I want to write %1 in %2.", "Put %1 in %2.",          "Could you type %1 in %2?",
    "Please type %1 in %2.",     "Go and write %1 in %2."};
constexpr Wordings kType = {"ui.type", kTypeTexts};
constexpr std::array<string_view, 8> kTurnTexts = {
    "Turn %2 the %1.",          "Please turn %2 the %1.",
    "I want the %1 to be %2.",  "The %1 should be %2.",
    "Switch the %1 %2.",        "Make sure that the %1 is %2.",
    "Please switch the %1 %2.", "Please make sure that the %1 is %2."};
constexpr Wordings kTurn = {"ui.turn", kTurnTexts};
constexpr std::array<string_view, 8> kScreenTexts = {"Screen:",
                                                     "The screen shows:",
                                                     "This is on the screen:",
                                                     "Elements:",
                                                     "Elements on the screen:",
                                                     "There are these elements:",
                                                     "The screen shows these elements:",
                                                     "You can see this on the screen:"};
constexpr Wordings kScreen = {"ui.screen", kScreenTexts};

enum class ElementKind { kButton, kLink, kField, kSwitch };
struct Element {
  int id = 0;
  ElementKind kind = ElementKind::kButton;
  std::string label;
  bool on = false;
};

std::string Describe(const Element& element) {
  std::string text = "[" + std::to_string(element.id) + "] ";
  switch (element.kind) {
    case ElementKind::kButton:
      return text + "button " + element.label;
    case ElementKind::kLink:
      return text + "link " + element.label;
    case ElementKind::kField:
      return text + "field " + element.label;
    case ElementKind::kSwitch:
      return text + "switch " + element.label + (element.on ? ": on" : ": off");
  }
  return text;
}

ElementKind DrawKind(Author& author, int difficulty) {
  const int roll = author.Between(0, 9);
  if (roll < 4) return ElementKind::kButton;
  if (roll < 5) return ElementKind::kLink;
  if (roll < 8 || difficulty < 2) return ElementKind::kField;
  return ElementKind::kSwitch;
}

// Buttons and links have commands as labels; fields and switches have things.
std::vector<Element> DrawScreen(Author& author, int difficulty) {
  constexpr std::array<int, 5> kCounts = {3, 4, 6, 7, 9};
  std::vector<Element> screen;
  const Pair theme = author.Command();
  int id = difficulty >= 4 ? author.Between(10, 60) : 1;
  while (static_cast<int>(screen.size()) < kCounts[static_cast<size_t>(difficulty - 1)]) {
    Element element;
    element.kind = DrawKind(author, difficulty);
    if (element.kind == ElementKind::kButton || element.kind == ElementKind::kLink) {
      const bool near = difficulty >= 2 && author.Chance(50);
      element.label = (near ? author.NearCommand(theme) : author.Command()).Join(" ");
    } else {
      element.label = author.Thing().Join(" ");
    }
    element.on = author.Chance(50);
    const bool known = std::any_of(screen.begin(), screen.end(),
                                   [&](const Element& e) { return e.label == element.label; });
    if (known) continue;
    element.id = id;
    id += difficulty >= 4 ? author.Between(1, 4) : 1;
    screen.push_back(std::move(element));
  }
  return screen;
}

Exchange Ask(Author& author, const Element& wanted) {
  const std::string id = std::to_string(wanted.id);
  Exchange exchange{"", "tap(" + id + ")"};
  switch (wanted.kind) {
    case ElementKind::kButton:
      exchange.question = author.Say(kPress, {"the button " + wanted.label});
      break;
    case ElementKind::kLink:
      exchange.question = author.Say(kPress, {"the link " + wanted.label});
      break;
    case ElementKind::kField: {
      const std::string value = author.Chance(50) ? author.Person() : author.Place();
      exchange.question = author.Say(kType, {value, "the field " + wanted.label});
      exchange.answer = "type(" + id + ", " + value + ")";
      break;
    }
    case ElementKind::kSwitch: {
      const bool on = author.Chance(50);
      exchange.question = author.Say(kTurn, {"switch " + wanted.label, on ? "on" : "off"});
      if (on == wanted.on) exchange.answer = "none";
      break;
    }
  }
  return exchange;
}

}  // namespace

Scene WriteUi(Author& author, int difficulty, int follow_ups) {
  std::vector<Element> screen = DrawScreen(author, difficulty);
  Scene scene;
  scene.context = author.Say(kScreen);
  for (const Element& element : screen) scene.context += "\n" + Describe(element);
  do {
    const size_t wanted = author.rng().Below(static_cast<uint32_t>(screen.size()));
    scene.exchanges.push_back(Ask(author, screen[wanted]));
    screen.erase(screen.begin() + static_cast<ptrdiff_t>(wanted));
  } while (follow_ups-- > 0 && !screen.empty());
  return scene;
}

}  // namespace withy::corpus
