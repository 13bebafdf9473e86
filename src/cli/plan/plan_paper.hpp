// `ckptctl plan --paper`: three papers' numbers beside their formulas and ours.
#pragma once

#include "cli/commands.hpp"

namespace ckpt::cli {

// Ends with "paper: table8=ok fig8=ok fig15=ok". A part is `differs` if a number contradicts its formula and nothing
// says so, or if ours does not meet the formula.
Result show_papers();

}  // namespace ckpt::cli
