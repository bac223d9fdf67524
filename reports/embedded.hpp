// Files of this folder that stand in the library as text; CMake writes the source that holds them.
#pragma once

namespace kalibri::reports {

extern const char* const kReportSchema;       // report.schema.json
extern const char* const kTablesSchema;       // tables.schema.json
extern const char* const kPublishedKolibri1;  // published/kolibri1.json

}  // namespace kalibri::reports
