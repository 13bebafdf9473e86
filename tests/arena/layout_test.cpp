#include "arena/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace ckpt::arena {
namespace {

using testing::HasSubstr;

LayoutEntry tensor(const std::string& name, ckpt_dtype dtype, std::vector<std::int64_t> shape) {
  return {name, dtype, std::move(shape), 0, 0};
}

std::vector<std::string> names(const Layout& layout) {
  std::vector<std::string> list;
  for (const auto& entry : layout.entries) list.push_back(entry.name);
  return list;
}

std::string refusal(const std::string& text) {
  try {
    parse_layout(text);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_CORRUPT);
    return failure.what();
  }
  return "accepted";
}

TEST(Layout, PacksTensorsByElementSizeThenNameWithoutGaps) {
  const Layout layout = pack({tensor("z", CKPT_U8, {3}), tensor("b", CKPT_F32, {2, 2}), tensor("c", CKPT_BF16, {1}),
                              tensor("a", CKPT_F32, {}), tensor("d", CKPT_I64, {0, 7}), tensor("e", CKPT_C64, {1})});
  EXPECT_THAT(names(layout), testing::ElementsAre("d", "e", "a", "b", "c", "z"));
  std::uint64_t end = 0;
  for (const auto& entry : layout.entries) {
    EXPECT_EQ(entry.offset_bytes, end);
    EXPECT_EQ(entry.offset_bytes % info(entry.dtype).size_bytes, 0u);
    end += entry.size_bytes;
  }
  EXPECT_EQ(layout.length_bytes, end);
  EXPECT_EQ(end, 8u + 4 + 16 + 2 + 3);
}

TEST(Layout, TheTextIsTheHeaderOfASafetensorsFile) {
  const Layout layout = pack({tensor("w", CKPT_F32, {2, 3}), tensor("quote\"\n", CKPT_BOOL, {})});
  EXPECT_EQ(layout_text(layout), R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                 R"("quote\"\n":{"dtype":"BOOL","shape":[],"data_offsets":[24,25]}})");
  EXPECT_EQ(layout_text(pack({})), "{}");
}

TEST(Layout, ParsesItsOwnText) {
  std::vector<LayoutEntry> tensors;
  for (std::size_t dtype = 0; dtype < dtypes.size(); ++dtype)
    tensors.push_back(tensor(std::string("t") + std::to_string(dtype), static_cast<ckpt_dtype>(dtype), {3, 1, 2}));
  const std::string text = layout_text(pack(tensors));
  EXPECT_EQ(layout_text(parse_layout(text)), text);
  EXPECT_EQ(parse_layout("{}").entries.size(), 0u);
}

TEST(Layout, MalformedTextsAreRefused) {
  EXPECT_THAT(refusal("nonsense"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})"), HasSubstr("does not begin where"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}})"), HasSubstr("do not fit"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})"), HasSubstr("do not fit"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
              HasSubstr("do not fit"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})"), HasSubstr("unknown dtype"));
  EXPECT_THAT(refusal(R"({"w":{"shape":[2],"data_offsets":[0,8]}})"), HasSubstr("is damaged"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":"2","data_offsets":[0,8]}})"), HasSubstr("is damaged"));
  EXPECT_THAT(refusal(R"({"":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})"), HasSubstr("name"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[1e300],"data_offsets":[0,4]}})"), HasSubstr("not an integer"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4.0]}})"), HasSubstr("not an integer"));
  for (const char* text : {" {}", "{ }", "{} ", R"({"w":{"dtype":"F32","shape":[1], "data_offsets":[0,4]}})",
                           R"({"w":{"shape":[1],"dtype":"F32","data_offsets":[0,4]}})",
                           R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})",
                           R"({"\u0077":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"})
    EXPECT_THAT(refusal(text), HasSubstr("not exactly what ckptengine writes")) << text;
}

TEST(Layout, AcceptsOnlyUtf8NamesThatAreNotReserved) {
  EXPECT_TRUE(is_tensor_name("größe.0"));
  EXPECT_FALSE(is_tensor_name(""));
  EXPECT_FALSE(is_tensor_name("\xff"));
  EXPECT_FALSE(is_tensor_name("__metadata__"));
  EXPECT_FALSE(is_tensor_name(std::string(4097, 'x')));
}

TEST(Layout, TheFirstDifferingTensorIsNamed) {
  const Layout stored = pack({tensor("a", CKPT_F32, {2}), tensor("b", CKPT_F32, {3})});
  EXPECT_FALSE(first_difference(stored, stored));
  EXPECT_THAT(*first_difference(stored, pack({tensor("a", CKPT_F32, {2})})),
              HasSubstr(R"(tensor "b" is stored as F32 [3], but not registered)"));
  EXPECT_THAT(*first_difference(stored, pack({tensor("a", CKPT_F16, {2}), tensor("b", CKPT_F32, {4})})),
              HasSubstr(R"(tensor "a" is stored as F32 [2], but registered as F16 [2])"));
  EXPECT_THAT(*first_difference(
                  stored, pack({tensor("a", CKPT_F32, {2}), tensor("b", CKPT_F32, {3}), tensor("c", CKPT_U8, {})})),
              HasSubstr(R"(tensor "c" is registered as U8 [], but not stored)"));
}

}  // namespace
}  // namespace ckpt::arena
