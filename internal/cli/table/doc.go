// Package table prints lists: as a table with aligned columns for people, as JSON or YAML for programs.
// One list of columns and one type of row serve all of them.
package table
