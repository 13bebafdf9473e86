// `ckptctl plan --paper` shows numbers of three papers beside what their formulas and ours give.
#pragma once

#include "cli/commands.hpp"

namespace ckpt::cli {

// Runs the command. The last line of its text is a verdict for each paper: "paper: table8=ok fig8=ok fig15=ok". A
// verdict is `differs` if a printed number contradicts the paper's formula without an explanation, or if our formula is
// not close to the paper's.
Result show_papers();

}  // namespace ckpt::cli
