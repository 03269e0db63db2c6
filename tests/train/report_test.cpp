// report: what a page shows is what the run's folder holds, escaped, of bounded size, and there is a page whatever is missing.
#include "train/report/report.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/data_sets.hpp"
#include "train/evaluation.hpp"
#include "train/report/chart.hpp"
#include "train/report/html.hpp"

namespace lockstep {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
const std::string evil = "<script>&\"'</script>";

std::int64_t count_of(const std::string& text, const std::string& part) {
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

/// A run's folder without any record.
class Report : public ::testing::Test {
 protected:
  Report() {
    config_.run.name = "r";
    config_.data.path = folder_ / "data";
    write_file(folder_ / "config.toml", to_toml(config_));
  }
  void write_records(const std::vector<Record>& records) {
    std::string lines;
    for (const Record& record : records) lines += to_line(record) + "\n";
    write_file(folder_ / "metrics.jsonl", lines);
  }
  std::string page() { return read_file(write_report(folder_.path())); }

  ScratchFolder folder_;
  Config config_;
};

TEST(Records, ALineReadsBackAsWhatWasWrittenAndNullAsNaN) {
  const TrainRecord train{.step = 7, .epoch = 0.1, .loss = 1.0 / 3, .top1 = 0.25, .learning_rate = 1e-30, .grad_norm = std::numeric_limits<double>::infinity(), .skipped = 2, .memory_bytes = 1LL << 40};
  const auto record = record_in(to_line(train));
  ASSERT_TRUE(record && std::holds_alternative<TrainRecord>(*record));
  const TrainRecord& back = std::get<TrainRecord>(*record);
  EXPECT_EQ(back.step, 7);
  EXPECT_EQ(back.loss, 1.0 / 3);
  EXPECT_EQ(back.learning_rate, 1e-30);
  EXPECT_TRUE(std::isnan(back.grad_norm));
  EXPECT_EQ(back.memory_bytes, 1LL << 40);
  const StartRecord start{.run = evil, .versions = "v", .git_hash = "g", .config = "a\nb", .hosts = {"x", "y"}, .ranks = 2, .step = 3, .resumed_from = "", .rank_map = "m"};
  const auto started = std::get<StartRecord>(record_in(to_line(start)).value());
  EXPECT_EQ(started.run, evil);
  EXPECT_EQ(started.hosts, start.hosts);
  for (const char* line : {"", "{", "[1]", "7", "{}", "{\"kind\": \"other\"}", "{\"kind\": 3}"}) EXPECT_FALSE(record_in(line).has_value()) << line;
  EXPECT_TRUE(std::isnan(std::get<EvalRecord>(record_in("{\"kind\": \"eval\", \"loss\": null, \"step\": \"x\"}").value()).loss));
}

// n^2 steps for n names would be minutes.
TEST(Records, ALineOfManyNamesIsReadAsAnyOther) {
  std::string line = "{\"kind\": \"eval\"";
  for (int i = 0; i < 200'000; ++i) line += ",\"n" + std::to_string(i) + "\":0";
  EXPECT_EQ(std::get<EvalRecord>(record_in(line + ", \"step\": 7}").value()).step, 7);
}

TEST(Decimated, ALongCurveKeepsItsPeaksItsEndsAndAtMostSoManyPoints) {
  std::vector<Point> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({static_cast<double>(i), std::sin(0.01 * i)});
  points[31'234].y = 50, points[77'777].y = -50;
  const std::vector<Point> kept = decimated(points);
  EXPECT_LE(kept.size(), most_points);
  EXPECT_GT(kept.size(), most_points / 2);
  EXPECT_EQ(kept.front().x, 0);
  EXPECT_EQ(kept.back().x, 99'999);
  EXPECT_EQ(std::ranges::count_if(kept, [](const Point& p) { return std::abs(p.y) == 50; }), 2);
  EXPECT_TRUE(std::ranges::is_sorted(kept, {}, &Point::x));
  for (const Point& p : kept) EXPECT_EQ(p.y, points[static_cast<std::size_t>(p.x)].y);
  EXPECT_EQ(decimated(std::vector<Point>(points.begin(), points.begin() + 2000)).size(), 2000u);
}

TEST(Draw, ACurveStandsInThePictureWithItsExactNumbersAndIsCutWhereAValueIsNotFinite) {
  const std::string svg = draw({.title = "t", .curves = {{"a", 0, {{1, 0.1}, {2, 1.0 / 3}, {3, nan_value}, {4, 1e-7}}}}});
  EXPECT_NE(svg.find("points=\"1,0.1 2,0.3333333333333333\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("points=\"4,1e-07\""), std::string::npos) << svg;
  EXPECT_EQ(count_of(svg, "nan") + count_of(svg, "inf"), 0);
  EXPECT_EQ(draw({.title = "t", .curves = {{"a", 0, {{1, nan_value}}}, {"b", 0, {}}}}), "");
  for (const std::vector<Point>& points : std::vector<std::vector<Point>>{{{0, 0}}, {{5, 5}, {6, 5}}, {{1, -1e300}, {2, 1e300}}, {{1, 1e-300}}}) {
    const std::string drawn = draw({.title = "t", .curves = {{"a", 0, points}}});
    EXPECT_EQ(count_of(drawn, "nan") + count_of(drawn, "inf"), 0) << drawn;
    EXPECT_LT(drawn.size(), 10'000u);
  }
}

TEST(Picture, IsABmpOfItsSizeWithTheLastRowFirst) {
  const std::uint8_t pixels[] = {255, 0, 0, 0, 255, 0, 0, 0, 255};   // red, green, blue below one another
  // What Pillow saves.
  EXPECT_EQ(picture_uri(pixels, 3, 1), "data:image/bmp;base64,Qk1CAAAAAAAAADYAAAAoAAAAAQAAAAMAAAABABgAAAAAAAwAAADEDgAAxA4AAAAAAAAAAAAA/wAAAAD/AAAAAP8A");
}

TEST(Shown, NumbersForPeople) {
  EXPECT_EQ(shown(1234567), "1,234,567");
  EXPECT_EQ(shown(-1234.56, 6), "-1,234.56");
  EXPECT_EQ(shown(0.5), "0.5");
  EXPECT_EQ(shown(0), "0");
  EXPECT_EQ(shown(999), "999");
  EXPECT_EQ(shown(2.30259), "2.303");
  EXPECT_EQ(shown(1.5e-7), "1.5e-07");
  EXPECT_EQ(shown(nan_value), "–");
}

TEST_F(Report, ARunWithoutRecordsOrWithoutEvaluationHasAPage) {
  EXPECT_EQ(count_of(page(), "<svg"), 0);
  EXPECT_NE(page().find("Nothing was recorded yet"), std::string::npos);
  write_records({StartRecord{.run = "r", .config = "", .step = 0}, TrainRecord{.step = 1, .epoch = 0.5, .loss = 2}});
  EXPECT_GT(count_of(page(), "<svg"), 0);
  EXPECT_NE(page().find("not evaluated yet"), std::string::npos);
}

TEST_F(Report, WhatIsNotFiniteLeavesAPageWithoutNan) {
  write_records({TrainRecord{.step = 1, .epoch = 1, .loss = nan_value, .grad_norm = nan_value}, EvalRecord{.step = 1, .epoch = 1, .loss = nan_value, .top1 = nan_value, .images = 3}});
  write_evaluation(folder_.path(), {.step = 1, .class_names = {"a", "b"}, .result = {.images = 1, .loss = nan_value, .class_images = {1, 0}, .class_correct = {0, 0}, .confusion = {0, 1, 0, 0},
                                    .mistakes = {{.image = 0, .label = 0, .predicted = 1, .probability = std::nanf(""), .loss = std::nanf("")}}}});
  const std::string html = page(), body = html.substr(html.find("<body>"), html.find("<script>") - html.find("<body>"));
  EXPECT_EQ(count_of(body, ">nan") + count_of(body, " nan") + count_of(body, ",nan") + count_of(body, "null"), 0);
}

TEST_F(Report, NamesOfClassesRunsPathsAndValuesAreEscaped) {
  config_.run.name = evil, config_.data.path = evil, config_.freeze.parameters = {evil};
  write_file(folder_ / "config.toml", to_toml(config_));
  write_file(folder_ / "log", evil + "\n");
  write_records({StartRecord{.run = evil, .versions = evil, .git_hash = evil, .config = evil, .job = evil, .hosts = {evil}, .step = 1, .resumed_from = evil, .rank_map = evil},
                 TrainRecord{.step = 1, .epoch = 1, .loss = 1}});
  for (const std::size_t classes : {2, 40}) {
    Evaluation e{.images = 2, .class_images = std::vector<std::int64_t>(classes), .class_correct = std::vector<std::int64_t>(classes), .confusion = std::vector<std::int64_t>(classes * classes),
                 .mistakes = {{.image = 0, .label = 0, .predicted = 1, .probability = 1, .loss = 9}}};
    e.class_images[0] = 2, e.class_correct[0] = 1, e.confusion[0] = 1, e.confusion[1] = 1;
    write_evaluation(folder_.path(), {.step = 1, .checkpoint = evil, .data = evil, .split = evil, .class_names = std::vector<std::string>(classes, evil), .result = e});
    const std::string html = page(), other = comparison_page({folder_.path(), folder_.path()});
    EXPECT_EQ(count_of(html, "<script>"), 1);           // the page's own
    EXPECT_EQ(count_of(html, "</script>"), 1);
    EXPECT_GT(count_of(html, escaped(evil)), 10);
    EXPECT_EQ(count_of(other, "<script>"), 1);
    EXPECT_GT(count_of(other, escaped(evil)), 3);
  }
}

TEST_F(Report, ALongRunHasASmallPage) {
  std::vector<Record> records;
  for (int i = 1; i <= 50'000; ++i) records.push_back(TrainRecord{.step = i, .epoch = i / 100.0, .loss = 1.0 / i, .top1 = 1 - 1.0 / i, .images_per_second = 1000.0 + i % 7, .grad_norm = 1.0 / (i % 13 + 1)});
  write_records(records);
  EXPECT_LT(page().size(), 1'000'000u);
}

TEST_F(Report, AnEvaluationReadsBackAsItWasWritten) {
  const EvaluationFile file{.step = 5, .checkpoint = "c", .data = "d", .split = "val", .class_names = {"a", evil},
                            .result = {.images = 4, .loss = 0.5, .top1 = 0.75, .top5 = 1, .class_images = {3, 1, 0}, .class_correct = {2, 1, 0}, .confusion = {2, 1, 0, 0, 1, 0},
                                       .mistakes = {{.image = 3, .label = 0, .predicted = 1, .probability = 0.5f, .loss = 2.5f}}}};
  write_evaluation(folder_.path(), file);
  const EvaluationFile back = read_evaluation(folder_.path()).value();
  EXPECT_EQ(back.class_names, file.class_names);
  EXPECT_EQ(back.result.class_images, file.result.class_images);
  EXPECT_EQ(back.result.class_correct, file.result.class_correct);
  EXPECT_EQ(back.result.confusion, file.result.confusion);
  ASSERT_EQ(back.result.mistakes.size(), 1u);
  EXPECT_EQ(back.result.mistakes[0].loss, 2.5f);
  write_file(folder_ / "evaluation.json", "{\"step\": 1}");
  EXPECT_FALSE(read_evaluation(folder_.path()).has_value());
  EXPECT_NE(page().find("not evaluated yet"), std::string::npos);
}

// A page was made of classes behind the end of a smaller matrix.
TEST_F(Report, AnEvaluationWhosePartsDoNotFitEachOtherIsNone) {
  const auto file = [](const std::string& classes, const std::string& confusion, const std::string& mistakes = "[]") {
    return "{\"step\": 1, \"checkpoint\": \"\", \"images\": 3, \"loss\": 0.5, \"top1\": 0.5, \"top5\": 1, \"classes\": " + classes + ", \"confusion\": " + confusion + ", \"mistakes\": " + mistakes + "}";
  };
  const std::string a = "{\"name\": \"a\", \"images\": 3, \"top1\": 0.5}", three = "[" + a + ", " + a + ", " + a + "]";
  write_file(folder_ / "evaluation.json", file(three, "[[1, 0, 0], [0, 1, 0], [0, 0, 1]]"));
  EXPECT_TRUE(read_evaluation(folder_.path()).has_value());
  for (const std::string& wrong : {file(three, "[[1]]"), file(three, "[[1], [1], [1]]"), file(three, "[[1, 0, 0], [0, 1, 0], [1]]"), file(three, "[[1, 0, 0], [0, 1, 0], 7]"), file(three, "[7, 7, 7]"), file(three, "{\"a\": [1]}"),
                                   file(three, "[[-1, 0, 0], [0, 1, 0], [0, 0, 1]]"), file("[{\"name\": \"a\", \"images\": 1e300, \"top1\": 0.5}]", "[]"), file("[{\"name\": \"a\", \"images\": 3, \"top1\": 1e300}]", "[]"),
                                   file("[{\"name\": \"a\", \"images\": -3, \"top1\": 0.5}]", "[]"), file("7", "[]"), file(three, "[]", "[{\"image\": 1e300, \"label\": 0, \"predicted\": 0, \"probability\": 1, \"loss\": 1}]"),
                                   file(three, "[]", "[{\"image\": 1, \"label\": -1, \"predicted\": 0, \"probability\": 1, \"loss\": 1}]")}) {
    write_file(folder_ / "evaluation.json", wrong);
    EXPECT_FALSE(read_evaluation(folder_.path()).has_value()) << wrong;
    EXPECT_NE(page().find("not evaluated yet"), std::string::npos);
  }
}

TEST_F(Report, SeedsOfOneConfigurationAreAGroupWithMeanAndDeviation) {
  std::vector<std::string> folders;
  for (int i = 0; i < 4; ++i) {
    folders.push_back(folder_ / ("run" + std::to_string(i)));
    std::filesystem::create_directory(folders.back());
    config_.run.name = "run" + std::to_string(i), config_.run.seed = i + 1, config_.optimizer.learning_rate = i < 3 ? 0.1 : 0.2;
    write_file(folders.back() + "/config.toml", to_toml(config_));
    write_file(folders.back() + "/metrics.jsonl", to_line(EvalRecord{.step = 1, .epoch = 1, .loss = 1, .top1 = 0.5 + 0.1 * i, .top5 = 1, .images = 10}) + "\n");
  }
  const std::string html = comparison_page(folders);
  EXPECT_NE(html.find("4 runs in 2 groups"), std::string::npos);
  EXPECT_NE(html.find("60.00 % ± 10<br><span class=\"soft\">50.00 % to 70.00 %"), std::string::npos);   // of 50, 60, 70
  EXPECT_NE(html.find("optimizer.learning_rate = 0.2"), std::string::npos);
  EXPECT_EQ(html.find("<code>run.seed"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
