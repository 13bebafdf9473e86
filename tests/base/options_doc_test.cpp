// docs/options.md is generated from the table of options, and this test says so when it is not up to date.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "options/options.hpp"

namespace ckpt {
namespace {

TEST(OptionsDocument, MatchesTheTableOfOptions) {
  std::stringstream text;
  text << std::ifstream(OPTIONS_DOCUMENT).rdbuf();
  EXPECT_NE(text.str().find(options_help()), std::string::npos) << "put this into " << OPTIONS_DOCUMENT << ":\n"
                                                                << options_help();
}

}  // namespace
}  // namespace ckpt
