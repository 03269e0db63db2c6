#include "base/config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <locale>

#include "support/python.hpp"

namespace lockstep {
namespace {

/// The message of the Error that reading `text` with `overrides` gives; "no error" when it is fine.
std::string complaint(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const ScratchFolder folder;
  write_file(folder / "x.toml", text);
  try {
    read_config(folder / "x.toml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_bad_input);
    return error.what();
  }
  return "no error";
}

struct Wrong {
  std::string toml;
  std::vector<std::string> says;   // each must stand in the message
};

TEST(Config, EveryMistakeInAFileIsToldInOneLineWithFileLineKeyAndRemedy) {
  const Wrong wrongs[] = {
      {"[schedule]\nkind = \"cosine\"\nwarmup_epoch = 5\n", {"x.toml:3", "[schedule] has no key \"warmup_epoch\"", "Did you mean \"warmup_epochs\"?"}},
      {"[optimzer]\nkind = \"sgd\"\n", {"x.toml:1", "no section [optimzer]", "Did you mean [optimizer]?"}},
      {"[something]\n", {"no section [something]", "Sections: data, augment"}},
      {"[[run]]\nseed = 1\n", {"run is a section", "write [run]"}},
      {"run = 3\n", {"x.toml:1", "run is a section"}},
      {"[model]\nlearning_rate = 0.1\n", {"x.toml:2", "Did you mean [optimizer] learning_rate?"}},
      {"[data]\nprecision = \"fp16\"\n", {"x.toml:2", "belongs to no section"}},
      {"learning_rate = 0.1\n", {"x.toml:1", "outside a section", "[optimizer] learning_rate"}},
      {"[loss]\nqqqqqqqqqqqqqqqq = 1\n", {"It has: label_smoothing"}},
      {"[run]\nepochs = \"ten\"\n", {"x.toml:2", "run.epochs = \"ten\" is no integer", "an integer from 1 to 1000000", "Default: 90"}},
      {"[run]\nepochs = 10.5\n", {"run.epochs = 10.5", "fraction", "an integer"}},
      {"[run]\nepochs = 0\n", {"run.epochs = 0 is out of range", "from 1 to 1000000"}},
      {"[run]\nseed = 9007199254740993\n", {"run.seed = 9007199254740993 is out of range"}},
      {"[run]\nseed = 99999999999999999999\n", {"x.toml:2"}},
      {"[optimizer]\nlearning_rate = nan\n", {"optimizer.learning_rate = nan is not finite", "a number from 0 to 10000"}},
      {"[optimizer]\nlearning_rate = inf\n", {"is not finite"}},
      {"[optimizer]\nlearning_rate = -1e-9\n", {"optimizer.learning_rate = -1e-09 is out of range"}},
      {"[optimizer]\nlearning_rate = true\n", {"optimizer.learning_rate = true is no number"}},
      {"[optimizer]\nlearning_rate = 2020-01-01\n", {"a date or time is no number"}},
      {"[optimizer]\nnesterov = \"true\"\n", {"optimizer.nesterov = \"true\" is neither true nor false", "without quotes"}},
      {"[optimizer]\nnesterov = 1\n", {"neither true nor false"}},
      {"[optimizer]\nkind = \"sdg\"\n", {"optimizer.kind = \"sdg\" is unknown", "\"sgd\" or \"adamw\"", "Did you mean \"sgd\"?"}},
      {"[optimizer]\nkind = 3\n", {"optimizer.kind = 3 is no text"}},
      {"precision = \"fp8\"\n", {"x.toml:1", "precision = \"fp8\"", "\"fp32\", \"tf32\", \"bf16\" or \"fp16\""}},
      {"[model]\nname = \"resnet51\"\n", {"Did you mean \"resnet"}},
      {"[data]\nmean = 0.5\nstd = [1]\n", {"data.mean = 0.5 is no list", "a list of numbers, each from 0 to 1"}},
      {"[data]\nmean = [0.5, 2, 0.5]\nstd = [1, 1, 1]\n", {"data.mean = [0.5, 2, 0.5] has 2, which is out of range"}},
      {"[data]\nmean = [0.5, \"a\"]\n", {"has \"a\", which is no number"}},
      {"[data]\nmean = [0.5]\n", {"data.mean and data.std"}},
      {"[data]\nmean = [0.5, 0.5]\nstd = [0.5, 0.5]\n", {"data.mean = [0.5, 0.5] has 2 entries"}},
      {"[data]\nglobal_batch = 128\nrank_batch = 32\n", {"data.global_batch = 128 and data.rank_batch = 32 are both set"}},
      {"[augment]\nscale_min = 0.5\nscale_max = 0.4\n", {"augment.scale_min = 0.5 is above augment.scale_max = 0.4"}},
      {"[augment]\neval = \"center_crop\"\neval_short = 200\nsize = 224\n", {"augment.eval_short = 200", "augment.size = 224"}},
      {"[optimizer]\nnesterov = true\nmomentum = 0\n", {"optimizer.momentum"}},
      {"[schedule]\nkind = \"multistep\"\n", {"milestones_epochs"}},
      {"[schedule]\nmilestones_epochs = [60, 30]\n", {"[60, 30] does not rise"}},
      {"[schedule]\nmilestones_epochs = [30]\nmilestones_steps = [5]\n", {"both set"}},
      {"[optimizer]\nrate_parameters = [\"fc.*\", \"*.bias\"]\nrate_factors = [10]\n", {"x.toml", "optimizer.rate_parameters has 2 patterns", "optimizer.rate_factors 1 factor"}},
      {"[freeze]\nparameters = [1]\n", {"freeze.parameters = [1] has 1, which is no text"}},
      {"[run]\nname = \"../x\"\n", {"run.name = \"../x\""}},
      {"[run]\nseed = 1\nseed = 2\n", {"x.toml:3", "no TOML"}},
      {"[run]\nseed = 1\n[run]\n", {"x.toml:3", "no TOML"}},
      {"[run]\nname = resnet\n", {"x.toml:2", "no TOML", "texts stand in quotes"}},
      {"[run\nseed = 1\n", {"x.toml:1"}},
      {"[run]\nname = \"a\xff\"\n", {"x.toml:2"}},
      {std::string("\x89HDF\r\n\x1a\n\0\0\0", 11), {"x.toml: is a checkpoint or a shard, not an input file", "eval.checkpoint=PATH"}},
      {"a = " + std::string(5000, '[') + "\n", {"x.toml:1"}},
  };
  for (const Wrong& wrong : wrongs) {
    const std::string message = complaint(wrong.toml);
    SCOPED_TRACE(wrong.toml.substr(0, 100) + "\n" + message);
    EXPECT_NE(message, "no error");
    EXPECT_EQ(std::ranges::count(message, '\n'), 0);
    EXPECT_NE(message.find("x.toml"), std::string::npos);
    for (const std::string& part : wrong.says) EXPECT_NE(message.find(part), std::string::npos) << part;
  }
}

TEST(Config, EveryMistakeInAnOverrideIsToldWithTheArgument) {
  const Wrong wrongs[] = {
      {"run.epoch=5", {"argument \"run.epoch=5\"", "[run] has no key \"epoch\"", "Did you mean \"epochs\"?"}},
      {"runs.epochs=5", {"no section [runs]", "Did you mean [run]?"}},
      {"lr=5", {"no key \"lr\" outside a section", "section.key=value"}},
      {"epochs=5", {"Did you mean run.epochs=5?"}},
      {"precison=fp16", {"no key \"precison\"", "Did you mean \"precision\"?"}},
      {"precision=fp61", {"precision = \"fp61\" is unknown"}},
      {"run.epochs", {"section.key=value"}},
      {"=5", {"section.key=value"}},
      {"run.epochs=", {"run.epochs = \"\" is no integer"}},
      {"run.epochs=five", {"run.epochs = \"five\" is no integer", "Default: 90."}},
      {"run.epochs=5\nseed=3", {"is no integer"}},
      {"optimizer.nesterov=yes", {"neither true nor false"}},
      {"schedule.milestones_steps=1", {"a list of integers, each from 0 to 1000000000000"}},
      {"schedule.milestones_steps=[1,-2]", {"has -2, which is out of range"}},
      {"data.path=\xff\xfe", {"argument"}},
      {"run.a.b=1", {"[run] has no key \"a.b\""}},
  };
  for (const Wrong& wrong : wrongs) {
    const std::string message = complaint("", {wrong.toml});
    SCOPED_TRACE(wrong.toml + "\n" + message);
    EXPECT_EQ(std::ranges::count(message, '\n'), 0);
    for (const std::string& part : wrong.says) EXPECT_NE(message.find(part), std::string::npos) << part;
  }
}

// Found by the fuzz program.
TEST(Config, WhatIsQuotedFromAFileOrArgumentStaysOnOnePrintableLine) {
  for (const std::string& message : {complaint("\"a\\nb\" = 1\n"), complaint("[\"a\\u001b[31m\"]\n"), complaint("[run]\n\"x\\ty\" = 1\n"), complaint("", {"r'\x1b'un.epochs=1"}), complaint("", {"run.ep\tochs=1"})}) {
    EXPECT_NE(message, "no error");
    EXPECT_TRUE(std::ranges::none_of(message, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) << message;
  }
}

// A table in a table for each dot, freed by recursion: 4 MB of them overflowed the stack.
TEST(Config, KeysOfMillionsOfDotsAreRefused) {
  std::string dots;
  for (int i = 0; i < 1'900'000; ++i) dots += "a.";
  for (const std::string& text : {dots + "a = 1\n", "[" + dots + "a]\n", "run = {" + dots + "a = 1}\n"}) {
    const std::string message = complaint(text);
    EXPECT_NE(message.find("x.toml: a line has more than 1000 dots"), std::string::npos) << message.substr(0, 200);
  }
  EXPECT_NE(complaint("", {"data.mean={" + dots + "a=1}"}).find("more than 1000 dots"), std::string::npos);
  EXPECT_EQ(complaint("[data]\npath = \"../../../../../../a.b.c\"\n"), "no error");
}

TEST(Config, AFileThatCannotBeReadIsToldWithTheNearestName) {
  const ScratchFolder folder;
  write_file(folder / "cifar10_resnet20.toml", "");
  const auto message = [&](const std::string& path) -> std::string {
    try {
      read_config(path, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message(folder / "cifar10_resnet2.toml").find("Did you mean " + (folder / "cifar10_resnet20.toml") + "?"), std::string::npos);
  EXPECT_NE(message(folder / "cifar10_resnet2.toml").find("No such file"), std::string::npos);
  EXPECT_NE(message(folder.path()).find("this is a folder"), std::string::npos);
  EXPECT_NE(message("/nowhere/x.toml").find("/nowhere/x.toml: cannot be read: No such file"), std::string::npos);
  write_file(folder / "large.toml", std::string(5 << 20, '#'));
  EXPECT_NE(message(folder / "large.toml").find("more than an input file"), std::string::npos);
}

TEST(Config, TheFileThenTheOverridesInOrderDecide) {
  const ScratchFolder folder;
  write_file(folder / "mine.toml", "precision = \"bf16\"\ndata.path = 'a'\n[run]\nepochs = 3\nseed = 1_000\n[optimizer]\nlearning_rate = 1\nnesterov = true\n[schedule]\nmilestones_epochs = [30, 60.5]\n");
  const std::vector<std::string> overrides = {"precision=fp16", "run.epochs=4", "run.epochs=5", "schedule.milestones_steps=[]", "data.path=/a b/c=d", "optimizer.nesterov=false",
                                              "data.mean=[0.25]", "data.std=[0.5]", "freeze.parameters=[\"layer1.*\", 'fc']", "optimizer.weight_decay=5e-4", "model.stem=\"cifar\"", "eval.checkpoint="};
  const Config config = read_config(folder / "mine.toml", overrides);
  EXPECT_EQ(config.precision, "fp16");
  EXPECT_EQ(config.run.epochs, 5);
  EXPECT_EQ(config.run.seed, 1000);
  EXPECT_EQ(config.run.name, "mine");
  EXPECT_EQ(config.data.path, "/a b/c=d");
  EXPECT_EQ(config.optimizer.learning_rate, 1.0);
  EXPECT_EQ(config.optimizer.weight_decay, 5e-4);
  EXPECT_FALSE(config.optimizer.nesterov);
  EXPECT_EQ(config.schedule.milestones_epochs, (std::vector<double>{30, 60.5}));
  EXPECT_EQ(config.data.mean, std::vector<double>{0.25});
  EXPECT_EQ(config.freeze.parameters, (std::vector<std::string>{"layer1.*", "fc"}));
  EXPECT_EQ(config.model.stem, "cifar");
  EXPECT_EQ(read_config(folder / "mine.toml", std::vector<std::string>{"run.name=5"}).run.name, "5");
  EXPECT_EQ(read_config("", std::vector<std::string>{"run.name=true"}).run.name, "true");
}

TEST(Config, WindowsFilesAreReadAlike) {
  const Config config = parse_config("\xef\xbb\xbf[run]\r\nepochs = 7\r\nname = \"n\"\r\n", "x");
  EXPECT_EQ(config.run.epochs, 7);
  EXPECT_EQ(config.run.name, "n");
}

/// A Config in which every key differs from its default.
Config strange_config() {
  Config config;
  auto change = [](const char*, auto& value, const Rule& rule, const char*) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, bool>) value = !value;
    else if constexpr (std::is_same_v<T, std::int64_t>) value += value < rule.high ? 1 : -1;
    else if constexpr (std::is_same_v<T, double>) value = value == 0.1 ? 0.3 : 0.1 + (rule.low > 0 ? rule.low : 0);
    else if constexpr (std::is_same_v<T, std::string>) value = rule.words.empty() ? "a \"b\"\\\t\n\x01\x7f Gr\xc3\xbc\xc3\x9f" "e" : rule.words.back() == value ? rule.words.front() : rule.words.back();
    else if constexpr (std::is_same_v<T, std::vector<std::string>>) value = {"x.*", "\""};
    else value = {static_cast<typename T::value_type>(1)};
  };
  config.keys(change);
  config.sections([&](const char*, auto& section) { section.keys(change); });
  config.data.rank_batch = 0;
  config.augment.scale_max = 0.7, config.augment.aspect_max = 1.1;
  config.schedule.milestones_steps.clear();
  config.optimizer.rate_factors = {0.5, 2};   // as many as the patterns
  return config;
}

TEST(Config, TheResolvedTextReadsBackEqual) {
  for (const Config& config : {Config(), strange_config()}) {
    const std::string text = to_toml(config);
    const Config back = parse_config(text, "resolved");
    EXPECT_EQ(to_toml(back), text);
    EXPECT_TRUE(differences(config, back).empty());
  }
  Config third;
  third.optimizer.learning_rate = 1.0 / 3;
  EXPECT_EQ(parse_config(to_toml(third), "resolved").optimizer.learning_rate, 1.0 / 3);
  const Config negative_zero = parse_config("[data]\nmean = [0.5, -0e-1, -0.0]\nstd = [1, 1, 1]", "input");
  EXPECT_TRUE(differences(negative_zero, parse_config(to_toml(negative_zero), "resolved")).empty());
}

TEST(Config, PythonsTomlReaderUnderstandsTheResolvedText) {
  const ScratchFolder folder;
  write_file(folder / "config.toml", to_toml(strange_config()));
  EXPECT_EQ(run_python(R"(
import sys, tomllib
c = tomllib.load(open(sys.argv[1], "rb"))
print(c["precision"], c["run"]["epochs"], c["freeze"]["parameters"], repr(c["data"]["path"]), c["optimizer"]["learning_rate"])
)", {folder / "config.toml"}), "fp16 91 ['x.*', '\"'] 'a \"b\"\\\\\\t\\n\\x01\\x7f Gr\u00fc\u00dfe' 0.3\n");
}

TEST(Config, NumbersAreReadAndWrittenAlikeInEveryLocale) {
  struct Comma : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    char do_decimal_point() const override { return ','; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string want = to_toml(strange_config());
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  const std::string text = to_toml(parse_config(want, "x")), message = complaint("[data]\nshuffle_window = -1234567\n");
  std::locale::global(before);
  EXPECT_EQ(text, want);
  EXPECT_NE(message.find("-1234567"), std::string::npos);
}

TEST(Config, DifferencesNameKeyOldAndNewInOrder) {
  Config before, after;
  after.run.epochs = 100, after.data.path = "x", after.optimizer.learning_rate = 0.2;
  const std::vector<Difference> found = differences(before, after);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].key, "data.path");
  EXPECT_EQ(found[1].key + found[1].before + found[1].after, "optimizer.learning_rate0.10.2");
  EXPECT_EQ(found[2].key + found[2].before + found[2].after, "run.epochs90100");
}

TEST(Config, OnlyKeysThatLeaveTheResultAloneMayChangeAcrossAResume) {
  for (const char* key : {"precision", "data.train_split", "data.global_batch", "data.micro_batches", "data.shuffle", "data.last_batch", "data.mean", "augment.train", "augment.size",
                          "model.name", "model.sync_bn", "model.dropout", "freeze.parameters", "loss.label_smoothing", "optimizer.learning_rate", "schedule.kind", "schedule.warmup_epochs", "run.seed",
                          "no.such_key", "nothing"})
    EXPECT_TRUE(changes_result(key)) << key;
  for (const char* key : {"run.epochs", "run.max_steps", "run.log_every", "run.name", "run.outputs", "run.resume", "run.stall_seconds", "run.ranks", "run.profile_from", "data.path", "data.readers", "data.slots", "data.cache",
                          "data.rank_batch", "data.eval_batch", "checkpoint.keep_last", "checkpoint.every_minutes", "bench.io", "eval.checkpoint", "comm.bucket_mib", "backends.conv", "device.record", "graph.fuse"})
    EXPECT_FALSE(changes_result(key)) << key;
}

TEST(Config, EveryKeyIsDescribedOnALineOfItsOwn) {
  const std::string text = describe_keys();
  std::size_t keys = 0;
  auto count = [&](const char* name, auto&, const Rule&, const char* meaning) {
    ++keys;
    EXPECT_NE(text.find(name), std::string::npos);
    EXPECT_NE(text.find(meaning), std::string::npos);
  };
  Config config;
  config.keys(count);
  config.sections([&](const char*, auto& section) { section.keys(count); });
  std::size_t lines = 0;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) lines += text[at] != '\n';
  EXPECT_EQ(lines, keys);
  EXPECT_NE(text.find("optimizer.kind = \"sgd\""), std::string::npos);
  EXPECT_NE(text.find("(\"sgd\" or \"adamw\")"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
