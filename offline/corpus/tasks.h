// The six tasks of the corpus: each writes one scene of a difficulty from 1 to 5 and knows its own
// system instruction. Where a context bears more than one question, the scene has up to
// `follow_ups` further ones, none of them asked twice. Neighbours: one .cc file a task;
// generator.cc chooses among them.
#pragma once

#include "offline/corpus/author.h"
#include "offline/corpus/record.h"

namespace withy::corpus {

// What more difficulty adds: functions, near misses, arguments and their order.
Scene WriteApi(Author& author, int difficulty);
// People, facts a person, and questions over two facts.
Scene WriteQa(Author& author, int difficulty, int follow_ups);
// Calendar entries, parts of the day, whom to address formally.
Scene WriteReply(Author& author, int difficulty, int follow_ups);
// Elements on the screen, near misses, switches that are already right.
Scene WriteUi(Author& author, int difficulty, int follow_ups);
// Digits, carries, dates and clock times that roll over.
Scene WriteMath(Author& author, int difficulty);
// Lines of chatter, refusals, changes of mind.
Scene WriteSummary(Author& author, int difficulty);

// The scene writer of `task`.
Scene WriteScene(Task task, Author& author, int difficulty, int follow_ups = 0);
// The wordings of the system message of `task`; each states the form of the answer.
const Wordings& Instructions(Task task);

}  // namespace withy::corpus
