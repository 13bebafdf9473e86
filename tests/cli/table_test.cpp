#include "cli/table.hpp"

#include <gtest/gtest.h>

namespace ckpt::cli {
namespace {

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(table({{"a", "head"}, {"longer", "x"}}, "  "), "  a       head\n  longer  x\n");
  EXPECT_EQ(table({}), "");
  EXPECT_EQ(table({{"one"}, {"two", "cells"}}), "one\ntwo  cells\n");
}

TEST(Table, SizesAndTimesAreShort) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(300ull << 30), "300 GiB");
  EXPECT_EQ(human_ms(12.4), "12 ms");
  EXPECT_EQ(human_ms(3400), "3.4 s");
  EXPECT_EQ(human_ms(600'000), "10 min");
}

}  // namespace
}  // namespace ckpt::cli
