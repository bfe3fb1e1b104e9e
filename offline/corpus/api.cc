// Task: choose an API and its arguments from a catalogue. The answer is one call with the arguments
// in the catalogue's order.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offline/corpus/tasks.h"

namespace withy::corpus {
namespace {

using std::string_view;

constexpr std::array<string_view, 16> kRequestTexts = {
    "Please %1 the %2 %3.",
    "I want you to %1 the %2 %3.",
    "Could you %1 the %2 %3?",
    "Can you please %1 the %2 %3?",
    "It is time to %1 the %2 %3.",
    "I need to %1 the %2 %3.",
    "My request is to %1 the %2 %3.",
    "Now %1 the %2 %3.",
    "Go and %1 the %2 %3.",
    "I would like to %1 the %2 %3.",
    "Help me to %1 the %2 %3.",
    "The next thing is to %1 the %2 %3.",
    "Please help me to %1 the %2 %3.",
    "Now I want to %1 the %2 %3.",
    "I would like you to %1 the %2 %3.",
    "Could you please %1 the %2 %3 now?",
};
constexpr Wordings kRequest = {"api.request", kRequestTexts};

constexpr std::array<string_view, 8> kCatalogueTexts = {
    "Catalogue:",
    "The catalogue of functions:",
    "These functions are there:",
    "Functions to choose from:",
    "The functions of this phone:",
    "You can call these functions:",
    "The phone has these functions:",
    "Choose from these functions:",
};
constexpr Wordings kCatalogue = {"api.catalogue", kCatalogueTexts};

enum class ParameterKind { kPerson, kPlace, kDay, kTime, kCount };
struct Parameter {
  ParameterKind kind;
  string_view name;
  string_view phrase;  // mention of the value %1 in a request
};
constexpr std::array<Parameter, 5> kParameters = {{{ParameterKind::kPerson, "person", "for %1"},
                                                   {ParameterKind::kPlace, "place", "in %1"},
                                                   {ParameterKind::kDay, "day", "on %1"},
                                                   {ParameterKind::kTime, "time", "at %1"},
                                                   {ParameterKind::kCount, "count", "%1 times"}}};

struct Function {
  Pair command;
  std::vector<Parameter> parameters;
};

std::string Signature(const Function& function) {
  std::string text = "- " + function.command.Join("_") + "(";
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    if (i > 0) text += ", ";
    text += function.parameters[i].name;
  }
  return text + ")\n";
}

std::string DrawArgument(Author& author, ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kPerson:
      return author.Person();
    case ParameterKind::kPlace:
      return author.Place();
    case ParameterKind::kDay:
      return std::string(author.Any(Weekdays()));
    case ParameterKind::kTime:
      return std::to_string(author.Between(6, 22)) + (author.Chance(50) ? ":00" : ":30");
    case ParameterKind::kCount:
      return std::to_string(author.Between(2, 30));
  }
  return "";
}

std::vector<Parameter> DrawParameters(Author& author, int count) {
  std::vector<Parameter> all(kParameters.begin(), kParameters.end());
  author.rng().Shuffle(all);
  all.resize(static_cast<size_t>(count));
  return all;
}

int ArgumentCount(Author& author, int difficulty) {
  constexpr std::array<int, 5> kMin = {1, 1, 2, 2, 3};
  constexpr std::array<int, 5> kMax = {1, 2, 2, 3, 3};
  const size_t i = static_cast<size_t>(difficulty - 1);
  return author.Between(kMin[i], kMax[i]);
}

}  // namespace

Scene WriteApi(Author& author, int difficulty) {
  Function wanted{author.Command(), DrawParameters(author, ArgumentCount(author, difficulty))};
  std::vector<Function> catalogue = {wanted};
  while (static_cast<int>(catalogue.size()) < difficulty + 1) {
    Pair other = difficulty >= 2 && author.Chance(60) ? author.NearCommand(wanted.command)
                                                      : author.Command();
    const bool known = std::any_of(catalogue.begin(), catalogue.end(),
                                   [&](const Function& f) { return f.command == other; });
    if (!known)
      catalogue.push_back({other, DrawParameters(author, ArgumentCount(author, difficulty))});
  }
  author.rng().Shuffle(catalogue);

  Scene scene;
  scene.context = author.Say(kCatalogue) + "\n";
  for (const Function& function : catalogue) scene.context += Signature(function);
  scene.context.pop_back();

  std::vector<std::string> phrases;
  std::string answer = wanted.command.Join("_") + "(";
  for (const Parameter& parameter : wanted.parameters) {
    const std::string value = DrawArgument(author, parameter.kind);
    if (!phrases.empty()) answer += ", ";
    answer += std::string(parameter.name) + ": " + value;
    phrases.push_back(Fill(parameter.phrase, {value}));
  }
  answer += ")";
  if (difficulty >= 3) author.rng().Shuffle(phrases);
  std::string arguments;
  for (const std::string& phrase : phrases) arguments += (arguments.empty() ? "" : " ") + phrase;
  scene.exchanges.push_back(
      {author.Say(kRequest, {wanted.command.first, wanted.command.second, arguments}), answer});
  return scene;
}

}  // namespace withy::corpus
