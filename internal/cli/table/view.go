package table

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// View is what a list is reduced to before it is printed, and in which order.
type View struct {
	Names     bool   // only the names, a line each
	Quiet     bool   // only the IDs, a line each
	NoHeaders bool   // no line with the titles of the columns
	SortBy    string // the title of a column, in any case; empty: the order of the runtime
}

// List says how rows of T are printed.
type List[T any] struct {
	Columns []Column[T]
	Name    func(T) string // what other commands take as the row's name
	ID      func(T) string // nil where rows have no ID: the name stands for it
}

// Check refuses a column to sort by that the list does not have.
func (l List[T]) Check(view View) error {
	_, err := l.column(view.SortBy)
	return err
}

func (l List[T]) column(title string) (*Column[T], error) {
	if title == "" {
		return nil, nil
	}
	var titles []string
	for i := range l.Columns {
		if strings.EqualFold(l.Columns[i].Title, title) {
			return &l.Columns[i], nil
		}
		titles = append(titles, strings.ToLower(l.Columns[i].Title))
	}
	return nil, fmt.Errorf("--sort-by: there is no column %q; the columns are %s", title, strings.Join(titles, ", "))
}

// Print writes rows as the format and the view ask for.
func (l List[T]) Print(w io.Writer, format Format, view View, rows []T) error {
	by, err := l.column(view.SortBy)
	if err != nil {
		return err
	}
	if by != nil {
		slices.SortStableFunc(rows, by.compare)
	}
	if !view.Names && !view.Quiet {
		return write(w, format, rows, l.Columns, !view.NoHeaders, gap)
	}
	value := l.Name
	if view.Quiet && l.ID != nil {
		value = l.ID
	}
	seen := map[string]bool{} // an image is listed under each of its names
	for _, row := range rows {
		text := value(row)
		if text == "" || seen[text] {
			continue
		}
		seen[text] = true
		if _, err := fmt.Fprintln(w, cell(text)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Column[T]) compare(a, b T) int {
	if c.Order != nil {
		return c.Order(a, b)
	}
	return cmp.Compare(c.Value(a), c.Value(b))
}
